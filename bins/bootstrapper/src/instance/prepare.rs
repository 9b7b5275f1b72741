//! `bootstrapper prepare`: turns a blank disk into the state disk of this boot.

use tec_core::code::Code;
use tec_core::system::SystemEntropy;
use tec_node::derive::DiskId;
use tec_node::host::Content;
use tec_node::port::StateDisk as _;
use tec_support::exit;
use tec_support::exit::CodedError;

use crate::instance::mapping;
use crate::instance::node::{Node, Standing};
use crate::instance::settings::Settings;

/// What may be erased from a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erase {
    /// Only what nobody can need.
    Nothing,
    /// Everything on it.
    Everything,
}

/// Creates and mounts the state disk, unless a cluster may have a key for it, or `stop` comes first. Returns
/// the exit code.
/// Errors: something else is on the disk, or it cannot be created or mounted.
pub async fn run(
    settings: &Settings,
    erase: Erase,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<u8> {
    let node = Node::open(settings)?;
    if node.standing().await? != Standing::New || node.recovering().exists() {
        tracing::info!("this boot has its state disk already");
        return Ok(exit::OK);
    }
    let _held = node.hold()?;
    tokio::select! {
        done = prepare(settings, &node, erase) => done,
        () = stop => Ok(exit::FAILED),
    }
}

async fn prepare(settings: &Settings, node: &Node, erase: Erase) -> anyhow::Result<u8> {
    let disk = &settings.disk;
    node.disk.check_device().await?;
    let content = node.disk.content().await?;
    // An earlier process of this boot may have created it, and died.
    let is_made = matches!(content, Content::Unclaimed(_))
        && node.disk.is_made_here()?
        && node.disk.is_new().await?;
    match content {
        _ if is_made => {}
        Content::Blank => make(settings, node, None).await?,
        Content::Unclaimed(id) => make(settings, node, id).await?,
        Content::Encrypted | Content::Foreign(_) if erase == Erase::Everything => {
            tracing::warn!(device = %disk.device.display(), "what is on the disk is erased");
            make(settings, node, None).await?;
        }
        Content::Encrypted => {
            // No key will open one whose header is refused.
            node.disk.id().await?;
            node.has_new_disk().await?;
            tracing::info!("a cluster may have a key of the state disk; it stays as it is");
            return Ok(exit::OK);
        }
        Content::Foreign(kind) => {
            let device = disk.device.display();
            let context = format!(
                "{device} holds {kind}, which is not erased; name another disk in the settings, or \
                 erase it with `bootstrapper prepare --dangerous-erase`"
            );
            return Err(CodedError::new(Code::BootstrapForeignDisk, context).into());
        }
    }
    mapping::start(&node.programs, &disk.units).await?;
    node.keeps_state_on_disk(settings).await?;
    tracing::info!("the state disk is made and mounted");
    Ok(exit::OK)
}

async fn make(settings: &Settings, node: &Node, id: Option<DiskId>) -> anyhow::Result<()> {
    let device = settings.disk.device.display();
    tracing::info!(%device, "the state disk is made; each sector is written once");
    Ok(node.disk.dangerous_make(&SystemEntropy, &settings.disk.header_file, id).await?)
}
