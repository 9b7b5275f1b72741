{{- /* What every pod and container of this chart has: the Pod Security Standard "restricted". */}}
{{- define "tec.pod" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tec.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Initializers and renewers ask, write and wait. */}}
{{- define "tec.small" -}}
requests: {cpu: 10m, memory: 16Mi}
limits: {memory: 64Mi}
{{- end }}

{{- /* Pods of one app rather run on different nodes. */}}
{{- define "tec.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            app: {{ . }}
{{- end }}

{{- /* Authorities that the controller publishes, and the token that it is shown. Not optional: the kubelet
       holds a pod until the controller has published them. */}}
{{- define "tec.way" -}}
- name: authorities
  secret:
    secretName: services-bootstrap-tls
- name: token
  projected:
    sources:
      - serviceAccountToken:
          audience: {{ .Values.audience }}
          expirationSeconds: 600
          path: token
{{- end }}

{{- /* The image that a value names, or that of this release in the registry. */}}
{{- define "tec.image" -}}
{{- $root := index . 0 -}}
{{- if index . 1 -}}
{{- index . 1 -}}
{{- else -}}
{{- required "set the registry that you pushed the images of this release to: --set registry=registry.example/tec" $root.Values.registry | trimSuffix "/" -}}
/{{ index . 2 }}:v{{ $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "tec.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ . }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app: {{ . }}
{{- end }}
