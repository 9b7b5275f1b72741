//! Three pods of the vault with the chart's own certificates, each killed in turn.

use std::time::Instant;

use tec_e2e::pods::{PLATFORM, Platform, until};

use crate::{SOON, password, tell};

const PODS: [&str; 3] = ["vault-0", "vault-1", "vault-2"];

/// The vault's content is the same from every pod, whichever pod was killed.
pub(crate) fn each_pod_is_killed_and_the_others_serve_what_it_knew(platform: &Platform) {
    platform.ready(PLATFORM, "statefulset/vault", SOON).unwrap();
    let before = password(platform, "vault-0", "admin").unwrap();
    for (number, killed) in PODS.into_iter().enumerate() {
        let kill = ["--namespace", PLATFORM, "delete", "pod", killed, "--force"];
        platform.kubectl(&[&kill[..], &["--grace-period=0"]].concat()).unwrap();
        let begin = Instant::now();
        let other = PODS.into_iter().cycle().nth(number + 1).unwrap();
        until("another pod serves", SOON, || {
            password(platform, other, "admin").is_ok_and(|now| now == before)
        })
        .unwrap();
        let served = begin.elapsed().as_secs_f32();
        platform.ready(PLATFORM, "statefulset/vault", SOON).unwrap();
        assert_eq!(password(platform, killed, "admin").unwrap(), before);
        let back = begin.elapsed().as_secs_f32();
        tell(&format!("{killed} killed: {other} served after {served:.1} s, back {back:.1} s"));
    }
}
