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
