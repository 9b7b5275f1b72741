//! Concurrent activity: admins, and nodes that register.

use std::process::Stdio;

use tec_core::code::Code;
use tec_core::migrate::Role;

use super::pair::Pair;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admins_who_move_it_at_once_never_make_two_authorities() {
    let pair = Pair::with(3).await;
    for round in 0..4 {
        let verbs = ["cutover", "cutover", "rollback", "apply"];
        let start = |verb: &&str| {
            let mut command = pair.command(verb, &[]);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(Stdio::null()).spawn().unwrap()
        };
        let mut running: Vec<_> = verbs.iter().map(start).collect();
        pair.holds(&format!("round {round}, while they run")).await;
        for child in &mut running {
            child.wait().unwrap();
        }
        pair.holds(&format!("round {round}, when all have ended")).await;
    }
    pair.migrate("cutover").unwrap();
    assert_eq!(pair.roles().await, [Role::ServeOnly, Role::Active]);
    assert_eq!(pair.target.keys().await, pair.keys);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_registers_while_it_is_copied_comes_along_or_is_refused() {
    let mut pair = Pair::with(3).await;
    let mut refused = 0;
    let mut numbers = 100..;
    // Machines are added during the copy, and while the authority moves.
    for verb in ["apply", "apply", "cutover"] {
        let mut command = pair.command(verb, &[]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut running = command.stderr(Stdio::null()).spawn().unwrap();
        let ended = loop {
            let number = numbers.next().unwrap();
            match pair.source.admit(number).await {
                Ok(()) => pair.expect(number),
                Err(error) => {
                    assert_eq!(error.code(), Some(Code::AuthorityElsewhere), "{error:?}");
                    refused += 1;
                }
            }
            if let Some(ended) = running.try_wait().unwrap() {
                break ended;
            }
        };
        assert!(ended.success(), "{verb} ended with {ended}");
        pair.holds(verb).await;
    }
    let late = pair.source.admit(1).await.unwrap_err();
    assert_eq!(late.code(), Some(Code::AuthorityElsewhere), "it gave the authority up");
    println!("{} machines came along, {refused} were refused", pair.keys.len());
    assert!(pair.keys.len() > 6, "machines came meanwhile");
    pair.migrate("verify").unwrap();
    let here = pair.target.keys().await;
    for (machine, key) in &pair.keys {
        assert_eq!(here.get(machine), Some(key), "acknowledged, and not copied");
    }
}
