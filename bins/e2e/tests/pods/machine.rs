//! Machines outside the cluster that reach it through node ports: software TPM, LUKS2, Clevis.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::AUTHORIZATION;
use serde_json::Value;
use tec_core::id::MachineId;
use tec_e2e::firmware::BootChain;
use tec_e2e::machine::Machine;
use tec_e2e::pods::{Charts, until};
use tec_e2e::process::Transcript;
use tec_e2e::settings::Settings;
use tec_e2e::wire;

use crate::image_root;

/// How many times a machine asks before it gives up, the default of node-agent.
const ROUNDS: u32 = 10;

/// The boot files of every machine here.
pub(crate) struct Fleet {
    settings: Settings,
    logs: Arc<Transcript>,
    directory: tempfile::TempDir,
    chain: BootChain,
}

/// A machine after its first boot.
pub(crate) struct One {
    pub(crate) id: MachineId,
    pub(crate) machine: Machine,
}

impl Fleet {
    /// Approves the image, which the Job measures: registers are not given anywhere.
    pub(crate) fn begin(charts: &Charts, image: &str) -> Self {
        let status = charts.approve("debian", image).unwrap();
        let chain = BootChain::of_approval(&image_root(), &status).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let logs = Arc::new(Transcript::new(directory.path().join("logs")).unwrap());
        let settings = Settings::for_tests(&directory.path().join("report.html")).unwrap();
        Self { settings, logs, directory, chain }
    }

    /// Ignition fetches the config of a new machine, and Clevis seals a disk with it.
    pub(crate) fn first_boot(&self, charts: &Charts, name: &str) -> One {
        let own = self.directory.path().join(name).join("boot");
        let chain = self.chain.copied_to(&own).unwrap();
        let mut machine =
            Machine::new(&self.settings, &self.logs, self.directory.path(), name, chain).unwrap();
        // As nodes do: the operator binds a key shortly after it was registered.
        machine.rounds = ROUNDS;
        let id = machine.first_boot(&config_of_a_new_machine(charts)).unwrap();
        One { id, machine }
    }
}

impl One {
    /// Boots again, and the disk opens.
    pub(crate) fn opens(&mut self) {
        self.machine.reboot().unwrap();
        let opened = self.machine.unlock().unwrap();
        assert!(opened.is_ok(), "{opened:?}");
    }

    /// Boots again, and the disk stays closed with a code that starts like this.
    pub(crate) fn is_refused(&mut self, code: &str) {
        self.machine.reboot().unwrap();
        self.machine.rounds = 1;
        let refused = self.machine.unlock().unwrap().unwrap_err();
        self.machine.rounds = ROUNDS;
        assert!(refused.code.starts_with(code), "{refused:?}");
    }

    /// A different kernel is refused, and `kubectl tec explain` names the file.
    pub(crate) fn a_changed_kernel_is_refused_and_named(&mut self, charts: &Charts) {
        self.machine.tamper_with_kernel().unwrap();
        self.is_refused("TEC-A412");
        let kernel = self.machine.chain.kernel().unwrap();
        let kernel = kernel.file_name().unwrap().to_str().unwrap();
        until("the refusal is explained", Duration::from_mins(1), || {
            let said = charts.tec(&["explain", &self.id.to_string()]).unwrap();
            said.contains("TEC-A412") && said.contains(kernel)
        })
        .unwrap();
        self.machine.tamper_with_kernel().unwrap();
        self.opens();
    }
}

/// Fetches the config of a new machine, like Ignition with the installer's config.
fn config_of_a_new_machine(charts: &Charts) -> Value {
    let merge = charts.merge().unwrap();
    let text = |place: &str| merge.pointer(place).and_then(Value::as_str).unwrap();
    let token = text("/ignition/config/merge/0/httpHeaders/0/value");
    let source = text("/ignition/config/merge/0/source");
    let ca = charts.ca().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let request = wire::client(&ca).unwrap().get(source);
        let answer = request.header(AUTHORIZATION, token).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    })
}
