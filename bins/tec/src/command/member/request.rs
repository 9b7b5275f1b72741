//! What `tec init` asks a node for.

/// What is asked for, as often as it takes.
pub(super) struct Request {
    uris: Uris,
    init_secret: SecretBytes,
    kubernetes_version: String,
    components: Vec<Component>,
    keep_proxy: bool,
}

/// How far a node goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// It only looks whether it could.
    Check,
    /// To the cluster.
    Whole,
}

impl Request {
    /// Everything that can be wrong at this desk is found before the node is asked.
    pub(super) fn read(args: &InitArgs) -> anyhow::Result<Self> {
        let (kubernetes_version, components) = match &args.components {
            Some(path) => bootstrapper::components::read(path)?,
            None => (args.kubernetes_version.clone().unwrap_or_default(), vec![]),
        };
        if let Some(path) = &args.keys.master_secret
            && !args.dry_run.dry_run
            && make_master_secret(path)?
        {
            tracing::info!(file = %path.display(), "made a master secret: keep it safe");
        }
        Ok(Self {
            uris: args.keys.read()?,
            init_secret: secret_line(&args.init_secret_file)?,
            kubernetes_version,
            components,
            keep_proxy: args.keep_proxy,
        })
    }

    pub(super) fn message(&self, extent: Extent) -> InitRequest {
        let component = |one: &Component| KubernetesComponent {
            url: one.url.clone(),
            hash: format!("sha256:{}", one.hash),
            install_path: one.install_path.clone(),
            extract: one.form == ComponentForm::Archive,
        };
        InitRequest {
            kms_uri: self.uris.kms(),
            storage_uri: self.uris.storage(),
            kubernetes_version: self.kubernetes_version.clone(),
            conformance_mode: self.keep_proxy,
            kubernetes_components: self.components.iter().map(component).collect(),
            init_secret: self.init_secret.expose("prove that we may").to_vec(),
            check: extent == Extent::Check,
            ..InitRequest::default()
        }
    }
}
