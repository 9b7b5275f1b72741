//! Sets up the operator, and the CA certificates that its servers check endorsement keys against.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use clap::ValueEnum as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::json;
use tec_k8s::render;
use tec_k8s::render::{
    Component, Images, Installation, OPERATOR_IMAGE, PodUser, REGISTRY_VARIABLE, RelatedImage,
};
use tec_support::{SystemClock, ek};

use super::{Founding, Wanted};
use crate::command::bootstrap::InstallArgs;
use crate::command::bootstrap::flags::{self, FlagError};
use crate::serve::args::{Approval, ServeArgs};

/// ConfigMap with the CA certificates of endorsement keys.
pub(super) const ROOTS: &str = "endorsement-roots";
const DEPLOYMENT: &str = Component::Operator.deployment();

impl Founding<'_> {
    pub(super) async fn operator(&mut self) -> anyhow::Result<()> {
        self.ensure(&render::namespace(&self.cluster.namespace)).await?;
        let installation = self.installation().await?;
        let mut objects = render::operator(&installation);
        if self.wanted.install.user_roles {
            objects.extend(render::user_roles());
        }
        for object in objects {
            self.ensure(&object).await?;
        }
        self.is_as_wanted(&installation).await
    }

    /// The operator to install. Without given pins, the operator's own default applies.
    async fn installation(&self) -> anyhow::Result<Installation> {
        let Wanted { args, given, install } = self.wanted;
        let mut installation = self.with_images().await?;
        installation.namespace.clone_from(&self.cluster.namespace);
        if given.has("pcrs") {
            installation.pcrs = args.pins.listed().collect();
        }
        if given.has("disk_keys") {
            installation.arguments.extend(disk_keys(args));
        }
        installation.pull_secrets.clone_from(&install.pull_secret);
        if install.assigned_pod_user {
            installation.deploy.user = PodUser::Assigned;
        }
        Ok(installation)
    }

    /// The installation with its images. An operator that is there already keeps its own, so only a new one
    /// needs a registry.
    async fn with_images(&self) -> anyhow::Result<Installation> {
        let InstallArgs { registry, operator_image, .. } = self.wanted.install;
        let image = |name: &str| {
            let given = operator_image.iter().rev().find(|(given, _)| given == name);
            given.map(|(_, image)| image.clone())
        };
        let of_operator = image(OPERATOR_IMAGE);
        let of_operator = of_operator
            .or_else(|| registry.as_ref().map(|registry| render::image(registry, OPERATOR_IMAGE)));
        let deployed = Images::from_variables(|variable| {
            if variable == REGISTRY_VARIABLE {
                return registry.clone();
            }
            let mut all = RelatedImage::ALL.into_iter();
            image(all.find(|related| related.variable() == variable)?.image_name())
        });
        let mut installation = Installation::default();
        if let (Some(image), Ok(images)) = (of_operator, deployed) {
            installation.image = image;
            installation.deploy.images = images;
            return Ok(installation);
        }
        let there = self.cluster.list::<Deployment>().await?;
        ensure!(there.iter().any(|one| one.name_any() == DEPLOYMENT), FlagError::NoRegistry);
        Ok(installation)
    }

    /// An existing operator is not changed, but must match the given flags.
    async fn is_as_wanted(&self, wanted: &Installation) -> anyhow::Result<()> {
        let deployment = self.cluster.get::<Deployment>(DEPLOYMENT).await?;
        let template = deployment.spec.and_then(|spec| spec.template.spec);
        let there: Vec<_> = template.iter().flat_map(|pod| &pod.containers).collect();
        let arguments: Vec<&String> =
            there.iter().flat_map(|one| one.args.iter().flatten()).collect();
        let mut needed: Vec<(&str, String)> = Vec::new();
        if !wanted.pcrs.is_empty() {
            let pcrs: Vec<_> = wanted.pcrs.iter().map(ToString::to_string).collect();
            needed.push(("pcrs", format!("--pcrs={}", pcrs.join(","))));
        }
        needed.extend(wanted.arguments.iter().map(|flag| ("disk_keys", flag.clone())));
        // A list that the operator has, but that was not requested, would be weaker than requested.
        let has_list = arguments.iter().any(|argument| argument.starts_with("--pcrs="));
        if self.wanted.given.has("pcrs") && wanted.pcrs.is_empty() && has_list {
            needed.push(("pcrs", "--pcrs=predicted".to_owned()));
        }
        for (id, wanted) in needed {
            if !arguments.iter().any(|argument| **argument == wanted) {
                return Err(FlagError::OtherOperator { flag: flags::typed(id), wanted }.into());
            }
        }
        Ok(())
    }

    /// The CA certificates of endorsement keys; an existing ConfigMap must be identical.
    pub(super) async fn roots(&mut self, roots: Option<String>) -> anyhow::Result<()> {
        let Some(roots) = roots else {
            return Ok(());
        };
        let config_map: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": ROOTS}, "data": {"ca.crt": &roots},
        }))?;
        let api = self.cluster.api::<ConfigMap>();
        let created = api.create(&PostParams::default(), &config_map).await;
        self.note(format!("ConfigMap {ROOTS}"), created)?;
        let there = self.cluster.get::<ConfigMap>(ROOTS).await?;
        let is_same = there.data.is_some_and(|data| data.get("ca.crt") == Some(&roots));
        ensure!(
            is_same,
            "--ek-roots differs from ca.crt of the ConfigMap {ROOTS}, which is kept (to change it: \
             kubectl edit configmap {ROOTS})"
        );
        Ok(())
    }
}

/// The CA certificates of endorsement keys.
pub(super) fn roots(args: &ServeArgs) -> anyhow::Result<Option<String>> {
    for (id, is_given) in
        [("ek_roots", args.ek_roots.is_some()), ("allow_ek", !args.allow_ek.is_empty())]
    {
        if is_given && args.ak_approval != Approval::Ek {
            let needs = "--ak-approval ek";
            return Err(FlagError::NoEffect { flag: flags::typed(id), needs }.into());
        }
    }
    let Some(path) = &args.ek_roots else {
        return Ok(None);
    };
    // Checks that they are acceptable.
    ek::issuer(Some(path), Arc::new(SystemClock)).context("--ek-roots")?;
    let text = std::fs::read_to_string(path);
    Ok(Some(text.with_context(|| format!("cannot read {}", path.display()))?))
}

/// The form of disk keys as a flag of the operator.
fn disk_keys(args: &ServeArgs) -> Option<String> {
    let form = args.disk_keys.to_possible_value()?;
    Some(format!("--disk-keys={}", form.get_name()))
}
