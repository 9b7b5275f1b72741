//! Error codes: one for each thing that can go wrong for a user, with cause and fix.
//!
//! A remote caller sees only the code and the title; the details go to the log and to `tec
//! explain`. Each code has a page `docs/errors/<code>.md`, which `cargo xtask codegen` writes from
//! this table.

mod family;
mod table;
mod text;

pub use self::family::Family;
use self::table::codes;
pub use self::text::UnknownCodeError;

codes! {
    RegisterMalformed = "TEC-R400", 400, "the request is malformed",
        "The body is not the JSON that the endpoint expects, has unknown fields, or contains an ID that is \
         not a UUID.",
        "Send {\"public_key\": \"<PEM>\", \"uuid\": \"<machine id>\"}.";
    RegisterToken = "TEC-R401", 401, "a valid registration token is needed",
        "The server was started with a registration token, and the request carries none or a different one.",
        "Put the header Authorization: Bearer <token> into the merge directive of the node's Ignition \
         config.";
    RegisterByAdmin = "TEC-R403", 403, "machines are registered by an admin here",
        "The registration policy is manual, so nodes cannot register themselves.",
        "Add the machine with `kubectl tec machine add`, and give the node the Ignition config that it \
         prints.";
    RegisterMachineUnknown = "TEC-R404", 404, "no such machine is waiting for an attestation key",
        "The machine was never registered, expired before it got an attestation key, or was removed.",
        "Boot the node again so that it registers, or add the machine with `tec machine add`.";
    RegisterMethod = "TEC-R405", 405, "the method is not allowed here",
        "The endpoint exists, but takes another HTTP method.",
        "Use GET for the Ignition config, and PUT for the attestation key.";
    RegisterAkKnown = "TEC-R409", 409, "Public key already registered",
        "This attestation key is already registered for this machine.",
        "Nothing to do: a node may register its own key again.";
    RegisterMachineTaken = "TEC-R410", 409, "the machine already has an attestation key",
        "Trust on first use: the first key wins, and a second key for the same machine is refused.",
        "If the node was reinstalled or its TPM replaced, revoke the old key with `tec ak revoke` and \
         approve the new one with `tec ak approve`.";
    RegisterNotFound = "TEC-R411", 404, "no endpoint at this path",
        "This server has no endpoint at the requested path.",
        "Use GET /ignition-clevis-pin-trustee for the Ignition config, and PUT /register-ak for the \
         attestation key.";
    RegisterKeyElsewhere = "TEC-R412", 409, "the attestation key belongs to another machine",
        "A node with this TPM was registered before, under another ID: it was reinstalled, or lost power \
         during its first boot. A node continues as the machine named in the answer, unless it runs an older \
         release or its pin has a custom path.",
        "If the disk of the old machine is no longer needed, remove that machine with `tec machine remove` \
         (`tec ak list` shows its ID); this deletes its disk key. Then register the node again.";
    RegisterTooLarge = "TEC-R413", 413, "the body is too large",
        "Registration bodies are capped at 64 KiB.",
        "Check what the client sends: a registration contains one public key.";
    RegisterContentType = "TEC-R415", 415, "the content type must be application/json",
        "The Content-Type header names another type.",
        "Send Content-Type: application/json.";
    RegisterKeyRefused = "TEC-R422", 422, "the attestation key is not acceptable",
        "The key is neither an RSA key of 2048 to 4096 bits with exponent 65537 nor an ECC P-256 key in PEM \
         (SubjectPublicKeyInfo), or its TPM public area is not that of a restricted signing key.",
        "Create the key with `node-agent ak create`, or as a restricted, fixedTPM signing key.";
    RegisterEkProof = "TEC-R423", 403, "the attestation key is not proven by an endorsement key",
        "The server approves only keys that a TPM's endorsement key vouches for, and the proof is missing, \
         invalid, or expired.",
        "Use a node-agent that answers credential activation, or start the server with --ak-approval tofu.";
    RegisterRebind = "TEC-R424", 403, "an admin must approve the new key of this machine",
        "The machine had an attestation key before, which was revoked or deleted. Trust on first use applies \
         only once in the life of a machine, so that no one else gets its disk key while an admin replaces a \
         TPM. The new key is stored and waits for approval (status 202, `pending`).",
        "Compare the fingerprint with `node-agent ak show` on the node, then run `tec ak approve \
         <fingerprint>` (on Kubernetes `kubectl tec ak approve <name>`). With --ak-approval ek, a new key in \
         the same TPM needs no admin.";
    RegisterEkRefused = "TEC-R425", 403, "the endorsement key is not trusted here",
        "The server trusts only endorsement keys whose certificate chains to one of its CA certificates \
         (--ek-roots, on Kubernetes spec.approval.endorsementRootsConfigMap). This key has no certificate, \
         or one from another CA.",
        "See the server's log for the reason. If the TPM is genuine, add its manufacturer's CA certificate.";
    RegisterRate = "TEC-R429", 429, "too many requests",
        "The rate limit of the registration endpoints or of the key broker was reached.",
        "Wait; nodes retry by themselves with back-off. Raise --register-rate or --kbs-rate for a large \
         first boot.";
    RegisterFull = "TEC-R430", 429, "too many machines wait to be claimed",
        "The limit on machines without an attestation key, or on waiting keys of one machine, was reached, in total \
         or for this network.",
        "Remove unclaimed machines with `tec machine prune`, let them expire, or raise --max-unclaimed. Revoke \
         waiting keys that are not yours with `tec ak revoke <fingerprint>`.";
    RegisterQuarantined = "TEC-R431", 429, "too many machines were claimed on first use",
        "The limit on machines admitted by trust on first use, in total or from this network, was reached. \
         The key is stored and waits for an admin (status 202, `pending`); its machine expires like any \
         unclaimed one.",
        "Approve it with `tec ak approve <fingerprint>`, remove unknown machines with `tec machine remove`, \
         or raise --max-claimed and --max-claimed-per-source (on Kubernetes spec.approval).";
    RegisterUnavailable = "TEC-R503", 503, "the service is temporarily unavailable",
        "The server's store failed.",
        "Look for a TEC-S code in the server's log at the time of the request.";

    RegisterNotReady = "TEC-R504", 503, "the service is not set up yet",
        "The TrustedExecutionCluster is missing or has no publicTrusteeAddr, the CA of a server that nodes \
         must trust is missing, one of additionalTrustees is invalid, or the CA certificates of endorsement \
         keys are invalid. Nothing was registered.",
        "See the server's log for what is missing; nodes retry by themselves.";

    RegisterLowSpace = "TEC-R507", 507, "registration is paused: the disk is nearly full",
        "The state directory has less free space than --reserve-mib. The remaining space is reserved for \
         audit lines, without which no disk key is released.",
        "Free or add disk space; nodes retry by themselves. Registered nodes can still unlock their disks.";

    EvidenceMalformed = "TEC-A400", 400, "the evidence is malformed",
        "The evidence does not match its type, is truncated, or is too large.",
        "Check that the attester and the server use the same protocol version (0.4.0).";
    ServerUnreachable = "TEC-A401", 503, "the server cannot be reached",
        "No server in the pin answered: the network, name resolution or a firewall is at fault, or the \
         server is down.",
        "Check the address in the Clevis pin, and whether the KBS listens there.";
    TlsFailed = "TEC-A402", 503, "the TLS connection failed",
        "The server's certificate has expired, is for another host, or was not issued by the pinned CA.",
        "Compare the CA in the pin with the server's; check the node's clock.";
    MachineUnknown = "TEC-A403", 401, "unknown machine",
        "The machine was never registered, was removed, or was revoked.",
        "List the machines with `tec machine list`; register the machine again if it is yours.";
    NoAttempt = "TEC-A410", 404, "no boot is recorded",
        "No evidence was sent to this server: the node has not booted since it registered, or cannot reach \
         the key broker.",
        "Start the node. If it is running, compare the address in its Clevis pin with `tec status`, and read \
         its console.";
    AkNotBound = "TEC-A404", 401, "the attestation key is not bound to this machine",
        "The key that signed is unknown, waits for approval, was revoked, or belongs to another machine.",
        "Find the key with `tec ak list`, then approve it with `tec ak approve <fingerprint>`, or register \
         the node again.";
    QuoteInvalid = "TEC-A405", 401, "invalid quote: wrong nonce or signature",
        "The quote was signed by another key, answers another nonce (old evidence), or is not a quote.",
        "Boot the node again. If the refusal persists on one node only, suspect a replay.";
    SelectionWrong = "TEC-A406", 401, "wrong PCR selection in the quote",
        "The quote must select SHA-256 PCRs 0 to 23 once, and come with exactly those values.",
        "Use an attester that quotes sha256:0-23 in one selection.";
    EventLogMismatch = "TEC-A407", 401, "the event log does not replay to the quoted PCRs",
        "The quoted PCRs are not those of an approved image, and the log that could explain them does not parse or does \
         not replay: it is truncated or was altered, or a PCR was extended without a log entry.",
        "Read the log with `tec eventlog show` on the node; if the firmware is unchanged, suspect tampering. A log alone \
         is never a reason to refuse: with the PCRs of an approved image, the node gets its key.";
    TpmSetBack = "TEC-A408", 401, "TPM counters went backwards: cloned or restored TPM state",
        "The counters and the clock in the quote are not later than those of the last quote by this key: the \
         state of an emulated TPM is in use in two places, or an older state was restored from a snapshot.",
        "Find out which machine is the right one: anyone who has a copy of the TPM's state can obtain its \
         disk key. If a snapshot was restored, boot the node again; if it is still refused, run `tec machine \
         readmit`, or on Kubernetes `kubectl tec machine readmit`. Otherwise clear the TPM, revoke the key \
         with `tec ak revoke`, register the node again, and approve its new key with `tec ak approve`.";
    PlatformChanged = "TEC-A409", 401, "firmware, Secure Boot policy or boot files changed",
        "PCR 0, 2 or 7, or a program of the firmware in PCR 4, differs from the machine's baseline, which is its first \
         accepted boot: firmware, an option ROM or Secure Boot was changed. Entries added to KEK, db and dbx are \
         accepted without approval if the boot sent its event log. Or a PCR that the image leaves open differs from its \
         first boot on the machine, to which its approval holds it: command line, initramfs or another file was changed.",
        "`tec platform diff <machine>` shows each changed event. If the change is yours, approve it with `tec platform \
         approve <machine>`: firmware for every machine with the same baseline, boot files for this machine. If not, \
         quarantine the machine with `tec machine quarantine <machine>`.";
    PcrMismatch = "TEC-A412", 401, "boot not approved: it matches no approved image",
        "A measured component, such as the kernel or the boot loader, differs from every approved image, or \
         the approval of its image expired or was revoked.",
        "If you changed the component, approve its image: `tec image approve <name> <path>` (on Kubernetes \
         `kubectl tec image approve <name> <reference>`). If the change is unexpected, suspect tampering and \
         leave the machine off.";
    ReleaseDenied = "TEC-A413", 401, "the release policy does not allow this",
        "The attested machine asked for a path that is not its own, or the policy denies it.",
        "Check the path in the node's Clevis pin: it must be default/<its own id>/root.";
    TargetNotNamed = "TEC-K403", 403, "no keys are published to this Trustee",
        "No Secret names its URL, or the URL is not https. A Secret is required so that permission to edit \
         the cluster object is not enough to send disk keys to a server.",
        "Put the exact URL into the entry `url` of the Secrets that the target names; the message shows the \
         command.";
    EscrowRefused = "TEC-K409", 409, "recovery key rejected: it is malformed or the escrow limit is reached",
        "64 recovery keys of this machine are stored already, or the one that it sent is malformed.",
        "Print the stored keys with `tec machine recovery-key <machine>`, and save one that opens the disk. \
         If the new key is malformed, update node-agent.";
    RotationUnderWay = "TEC-K410", 409, "the disk key of a machine is being rotated",
        "A new disk key waits until the machine has a key slot for it, or the old one until its slot is \
         removed. A migration or a backup in the meantime could lose the only key that opens the disk.",
        "Run `node-agent key rotate` on the machine, and try again. If the machine does not come back, cancel \
         with `tec key cancel <machine>`, or remove it with `tec machine remove <machine>`.";
    RotationNotCurrent = "TEC-K411", 409, "the rotation of this disk key is not current",
        "The machine confirmed a step of a rotation that an admin canceled in the meantime, or that another \
         one replaced. The disk opens as before.",
        "Run `node-agent key rotate` on the machine again: it removes the key slot that is left, and continues \
         with a newer rotation, if any.";
    MachineQuarantined = "TEC-A423", 401, "the machine is quarantined",
        "An admin quarantined this machine: it may attest, but gets no disk key until it is released. Its \
         key is kept.",
        "Find out why (`tec audit` or `kubectl tec machine show`), then run `tec machine release <machine>` \
         (on Kubernetes `kubectl tec machine release <machine>`), or retire or revoke the machine.";
    InitramfsEnded = "TEC-A424", 401, "disk keys are released only while the initramfs runs",
        "The machine asked for its disk key after its initramfs had ended, as PCR 11 shows (`leave-initrd`), or PCR 11 \
         cannot be explained. The root file system is not measured: if somebody replaced it, this request is theirs.",
        "If nothing on the machine should have asked, suspect that its root file system was replaced. If a disk was not \
         opened at boot, boot the machine again; its initramfs asks. If the initramfs itself was refused, send its event \
         log, or approve an image that states PCR 11. Where a running system needs the key, let the initramfs keep it, \
         or run `tec machine readmit <machine>` (on Kubernetes `kubectl tec machine readmit`): until its next boot, \
         the machine is set up like a new one.";
    KeyMissing = "TEC-A414", 401, "there is no key at this path",
        "The machine attested successfully, but no key was stored for it, or its key was removed.",
        "If the key was lost, restore the store from a backup; a new key cannot open the old disk.";

    KeySealed = "TEC-K500", 503, "a stored key cannot be unsealed",
        "The seal key file is not the one that the keys were sealed with, or a record was altered.",
        "Restore the seal key file that belongs to this store: a copy from before `tec key reseal` belongs to \
         a database from before it. If the key was replaced while a program ran, start that program again.";
    PolicyInvalid = "TEC-P400", 400, "the policy does not compile",
        "The Rego text has an error, or its package is not `policy`.",
        "Correct the policy: the error names line and column. `tec trustee lint` checks a policy offline.";
    TlsMaterial = "TEC-T500", 503, "the certificate or private key is unusable",
        "The file is missing or not PEM, or the certificate and the key do not belong together.",
        "Check the files. Pass both --tls-cert and --tls-key, or neither to use the built-in CA.";
    CertManagerMissing = "TEC-T404", 404, "cert-manager is not installed",
        "The cluster object names an issuer of cert-manager, and the API server does not know the kind \
         Certificate of cert-manager.io/v1.",
        "Install cert-manager. Without it, create the cluster object again without spec.certificateIssuer.";
    CertificatePending = "TEC-T503", 503, "cert-manager has not issued a certificate yet",
        "The issuer does not exist, is not ready, refuses a name, or provides no ca.crt, which nodes pin.",
        "`kubectl describe certificate` and `kubectl get certificaterequest` show why. Use an issuer that \
         fills ca.crt.";
    CaHeldBack = "TEC-T409", 409, "machines do not trust the next CA yet",
        "The CA of the servers is being replaced, and some machines did not report that their disks trust \
         the next one: they are off, do not run node-agent refresh-ca, or use another implementation of the \
         Clevis pin.",
        "Switch on those that are off. On the others, install the timer tec-refresh-ca or run `node-agent \
         refresh-ca`. For machines that are gone, run `kubectl tec machine retire <machine>`.";
    ImageUnreadable = "TEC-I400", 400, "the image cannot be read",
        "No shim, boot loader or kernel was found, or a file is corrupt.",
        "Pass the root of the image's file tree; the error names the file and the offset.";
    ImageReference = "TEC-I402", 400, "the image is not referenced by digest",
        "The reference is not of the form `registry.example/repository@sha256:<64 hexadecimal digits>`.",
        "Get the digest from the registry, for example with `skopeo inspect`.";
    ImageDenied = "TEC-I403", 403, "the registry denies access to this image",
        "The image is private and no pull secret matches its registry, or the credentials are wrong or \
         expired.",
        "Provide a pull secret for this registry that allows pulling.";
    ImageSecret = "TEC-I405", 400, "the pull secret cannot be used",
        "The file is not in the format kubernetes.io/dockerconfigjson.",
        "Create it with `kubectl create secret docker-registry`.";
    ImageTag = "TEC-I407", 400, "the reference names no tag to follow",
        "It has a digest, or no tag.", "Use a reference such as `registry.example/os:44`.";
    ImagePlatform = "TEC-I406", 404, "no image for this platform",
        "The index lists no image for the operating system and architecture, or several.",
        "Approve the digest of the image for the nodes' platform.";
    ImageTooLarge = "TEC-I413", 413, "the image is too large",
        "The image's manifest, its configuration, or the total size of its layers exceeds the limit.",
        "Check that the reference names an operating system image.";
    ImageBomb = "TEC-I415", 413, "the image is a decompression bomb",
        "It unpacks to more than 128 MiB and a hundred times its size, or to more than 64 GiB, unlike any \
         operating system image.",
        "Check where the file comes from. Pass a mostly empty disk uncompressed.";
    ImageAbsent = "TEC-I414", 404, "the registry has no such image",
        "The image was deleted or never pushed, or the reference names the wrong repository; some registries \
         also report this for private images.",
        "Compare the reference with the registry; pass a pull secret if the image is private.";
    ImageAltered = "TEC-I424", 502, "the registry sent content that does not match the digest",
        "The image was altered in transit or in the registry, or a mirror is broken.",
        "Check the registry or mirror that the log names; nothing it sent was used.";
    ImageLabel = "TEC-I425", 422, "the image's label with PCR values cannot be used",
        "The label org.coreos.pcrs is malformed, or its events do not produce its values.",
        "Build the image with a label printed by `compute-pcrs all`, or without one.";
    ImageUnsigned = "TEC-I426", 422, "no accepted key signed the image",
        "The image has no signature, or only signatures of other keys or of another digest.",
        "Sign it with `cosign sign --key`, by digest, and push the signature; or add the signer's public key to the accepted ones.";
    ImageLabelLies = "TEC-I427", 422, "the image's label states PCR values that its files do not produce",
        "The label org.coreos.pcrs was created for different boot files, or was falsified.",
        "Build the image again with the label that `compute-pcrs all` prints for it, or without one; find out who wrote this label.";
    ImageUnpinned = "TEC-I428", 422, "parts of the image's boot are not checked",
        "No pinned PCR covers the initramfs, the kernel command line or the kernel, so a machine that changes \
         them gets its disk key. With GRUB, only PCRs 4 and 14 can be predicted if its configuration is not in the image or \
         does something that TEC does not follow; `--pcrs` can leave out further PCRs.",
        "Use a unified kernel image, of which PCRs 4, 11 and 12 cover everything. With Debian's GRUB, approve the \
         root file system that the machine boots, with /boot and /boot/efi. To accept that these parts are not checked, repeat the command with `--accept-unpinned`, \
         or with `--first-boot` to hold each machine to its first boot of the image.";
    AttemptUnusable = "TEC-I429", 422, "this attempt cannot be approved as an image",
        "Only a boot that was refused because of its registers can be approved as it was, and only if its event log \
         explains all of PCRs 4, 8, 9, 11, 12, 13 and 14 in at most 768 events. What it measured is kept for the last \
         attempt of each machine.",
        "Boot the machine again, and approve the attempt that is recorded then: `--from-attempt MACHINE` takes its last one.";
    RegistryAnswer = "TEC-I502", 502, "invalid answer from the registry",
        "The host is not a container registry, or speaks another protocol.",
        "Check the host in the reference and the mirrors.";
    RegistryUnreachable = "TEC-I503", 503, "the registry cannot be reached",
        "Name resolution, the network, TLS or the registry failed, or the registry asked the client to retry \
         later.",
        "Try to reach the registry from the same network. For a private registry, provide its CA \
         certificate.";
    BundleSignature = "TEC-I401", 401, "the bundle of reference values is not signed by any of the \
                       given keys",
        "The bundle was changed after it was signed, or another key signed it.",
        "Download the bundle and its signature again; pass the public key of the image's builder with --key.";
    BundleImage = "TEC-I409", 409, "the bundle of reference values is for another image",
        "The digest in the bundle differs from the requested one.",
        "Use the bundle that was generated for this build of the image.";
    BundleExpired = "TEC-I410", 410, "the bundle of reference values expired",
        "The expiry time that the signer set has passed, or the clock is wrong.",
        "Ask the signer for a new bundle of the image; check the clock.";
    BundleMalformed = "TEC-I422", 422, "the bundle of reference values is malformed",
        "The bundle, signature or key is not in the format of `tec pcr bundle`.",
        "Sign with `tec pcr bundle sign`; keys must be P-256 keys in PEM.";
    ImageUnknown = "TEC-I404", 404, "no image with this name",
        "The image was never approved, or its name is misspelled.",
        "List the images with `tec image list`.";

    StoreCorrupt = "TEC-S500", 503, "the store is damaged",
        "The database file fails its integrity check, is not a TEC store, or lacks audit lines that it had.",
        "Stop the server, keep the file, and restore the last backup.";
    StoreFull = "TEC-S507", 503, "the disk is full",
        "The store could not write; nothing from the request was kept.",
        "Free space on the disk of the state directory. The server resumes by itself.";
    StoreAccess = "TEC-S403", 503, "the state directory is not accessible to this user, or open to others",
        "Files with keys must belong to the user of the server and be inaccessible to all others.",
        "Run the command as the user of the server. If the mode is wrong, set mode 700 on the directory and \
         600 on its files.";
    StoreVersion = "TEC-S505", 503, "the store was written by a newer version",
        "The schema version in the file is higher than this program supports.",
        "Use the newer program; stores cannot be downgraded.";
    StoreUnavailable = "TEC-S503", 503, "the store is unavailable",
        "The database is locked by another process, or the writer stopped.",
        "Check the server's log and the state directory, and look for another program that holds tec.db \
         open.";
    SettingsConflict = "TEC-S409", 409, "a flag contradicts the settings of the state directory",
        "`tec bootstrap init` wrote the settings to tec.toml, and nodes keep the settings they received \
         then.",
        "Omit the flag. To change a setting, edit tec.toml, then start the server.";
    SettingsMalformed = "TEC-S422", 422, "the settings of the state directory are malformed",
        "tec.toml is not TOML, or a key in it is not the long name of a flag of `tec serve`.",
        "Correct the line that the message names; `tec serve --help` lists the flags.";
    DemandsLowered = "TEC-S411", 409, "the server would demand less of nodes than it did",
        "The server that ran last on this state directory, or the one whose backup was restored, demanded a registration \
         token, approval by an admin, or proof by an endorsement key, and the flags of this start do not.",
        "Start it with the same flags, or put them into tec.toml. To demand less from now on, start it once with \
         `--dangerous-lower-demands`.";
    ServerRunning = "TEC-S410", 409, "a server already runs on this state directory",
        "Another `tec serve`, or `tec key reseal`, holds the lock of the state directory.",
        "Stop the other server first, or pass another directory with --state-dir.";

    ClusterForbidden = "TEC-C403", 403, "the cluster does not allow this",
        "The user of the kubeconfig has no permission for it, or the credentials expired.",
        "Ask for a role from kustomize/users, for example machine-admin-role; `kubectl auth whoami` shows \
         your user.";
    ClusterMissing = "TEC-C404", 404, "there is no such object in the cluster",
        "The name or the namespace is wrong, or the custom resources are not installed.",
        "Check --namespace, and run `kubectl tec check`.";
    ClusterConflict = "TEC-C409", 409, "conflict with an object in the cluster",
        "An object with this name exists already, it was changed in the meantime, or there are several where \
         only one is allowed.",
        "Check the object that the message names, and try again.";
    ClusterRefused = "TEC-C422", 422, "the cluster refuses this object",
        "A field is malformed, or cannot be changed once it is set.",
        "The message names the field; `kubectl explain` describes it.";
    ClusterUnreachable = "TEC-C503", 503, "the API server of the cluster does not answer",
        "The kubeconfig names the wrong cluster, the network is down, or the API server is down.",
        "Try `kubectl get --raw /readyz` with the same context.";
    ClockSkewed = "TEC-C425", 503, "the server's clock is wrong",
        "The clock of the host that runs the server differs from the API server's by more than 30 seconds. \
         Servers register no node and release no key; the operator issues and renews no certificate, removes \
         no unclaimed machine, and publishes only images that are approved according to both clocks. \
         Revocations still take effect.",
        "The server's log and the condition `Ready` of the cluster object show the difference. Find out \
         which of the two hosts is wrong (`chronyc tracking` on both) and synchronize its clock; everything \
         resumes by itself.";
    NodeTpm = "TEC-N500", 503, "the TPM cannot be used",
        "There is no TPM, it is busy, or the resource manager is missing.",
        "Check /dev/tpmrm0, or name another TPM with --tcti.";
    NodeHandle = "TEC-N409", 409, "another object is at the attestation key's handle",
        "The persistent handle (default 0x81010002) holds an object other than the attestation key.",
        "If nothing uses that object, evict it with `tpm2_evictcontrol`. Otherwise pass another --ak-handle \
         to all commands.";
    NodeLockout = "TEC-N423", 503, "the TPM is in lockout",
        "Wrong passwords were tried on the TPM, and the attestation key was created by a release that did \
         not exempt it from dictionary attack protection.",
        "Wait for the TPM's recovery time, or run `tpm2_dictionarylockout --clear-lockout`; a new \
         attestation key is exempt.";
    NodeConfig = "TEC-N400", 400, "the pin's configuration is malformed",
        "The JSON passed to the Clevis pin is not a trustee configuration.",
        "The second line says what is invalid. The smallest configuration is {\"servers\": [{\"url\": \
         \"https://<host>:8080\", \"cert\": \"<PEM>\"}], \"path\": \"default/<machine id>/root\"}.";
    NodeHeader = "TEC-N422", 422, "the sealed header cannot be opened",
        "The JWE in the LUKS token is damaged, or the released key is not the one it was sealed with.",
        "Inspect it with `clevis luks list`; use the recovery key if the token is lost.";
    NodeDisk = "TEC-N424", 500, "the header of the disk cannot be read or changed",
        "The device is not LUKS2, has no token of the pin trustee, its passphrase opens no key slot, or \
         cryptsetup failed.",
        "Inspect it with `cryptsetup luksDump` and `clevis luks list`. Running the same command again is \
         safe.";
    NodeClock = "TEC-N425", 503, "the server's certificate is not valid at the time of the node's clock",
        "The clock of the node is wrong (an empty battery, or no network time in the initramfs), the \
         certificate has expired, or the clock of the server was ahead when it was issued.",
        "Compare `date` on the node with the dates of the server's certificate. Set the clock in the \
         firmware's settings, or renew the certificate (`tec serve` does so by itself when it starts with the right \
         clock); the node continues by itself.";
    NodeUnsafe = "TEC-N426", 422, "the header of a disk does not protect it",
        "The LUKS2 header of a disk that is bound describes a part that is not encrypted, a second part, or a \
         re-encryption that is under way. Who has the disk can write that, to get its volume key or plain text.",
        "No passphrase was used. If you started a re-encryption, finish it with the recovery key on a system that you \
         trust (`cryptsetup reencrypt --resume-only`). If not, suspect the disk, and restore its header from a backup.";
    NodeRoot = "TEC-N427", 422, "the root file system is not on the disk that was opened",
        "The initramfs opened a disk with a released key, and something else is mounted as the root file system. \
         Somebody may have planted it, to read the disk from there. Nothing of it was started.",
        "Remove the disk, partition or logical volume that has the UUID or label of the root. If the root is meant to \
         be elsewhere, open the disk after the boot, not in the initramfs.";
    NodeFull = "TEC-N507", 507, "no space left on the node",
        "The file system that the node writes to is full, or a quota is exceeded.",
        "Free space, and run the same command again: nothing was lost.";

    BootstrapRequest = "TEC-B400", 400, "the node cannot process the request",
        "A key URI, a storage URI or a component is malformed, or of a type that this build of the node does \
         not support.",
        "The message names the invalid field.";
    BootstrapSecret = "TEC-B401", 401, "wrong init secret for this node",
        "The platform gave the node the hash of a different secret.",
        "Compare the hash in the node's metadata with the secret; nothing was changed on the node.";
    BootstrapUntrusted = "TEC-B403", 403, "the node's evidence is refused",
        "The node has a different attestation key or different measurements than expected, is in a cluster \
         already, or another host answers in its place.",
        "Run `tec node verify`, which lists every check. Send the node no secret before it passes.";
    BootstrapNoDisk = "TEC-B404", 404, "the state disk is missing",
        "The device that [disk] of bootstrapper.toml names does not exist: the disk is not attached, its \
         partition has another label, or udev has not found it yet.",
        "Attach the disk, or set device to a path that `lsblk -o PATH,PARTLABEL` shows. The unit tries again \
         every five seconds.";
    BootstrapReadOnly = "TEC-B405", 405, "the state disk is read-only",
        "The disk is attached read-only, or the kernel stopped writing to its file system after an I/O \
         error.",
        "Attach the disk with write access. If `journalctl -k` shows I/O errors, replace the disk.";
    BootstrapUnlisted = "TEC-B406", 406, "the node does not list the key service",
        "The Recover request names a key service or a store that recovery_key_services of the node's \
         bootstrapper.toml does not list. No service was called.",
        "Add the URI from the message, without credentials, to recovery_key_services, or recover with the \
         master secret: keys derived from it need no key service.";
    BootstrapEndorsement = "TEC-B407", 403, "the node's endorsement key is refused",
        "The certificate of the node's endorsement key expired or does not chain to any of \
         endorsement_roots, the key is not in endorsement_keys, or the node did not prove that its \
         attestation key is in the same TPM.",
        "The message and the log of the join service give the reason and the fingerprint of the endorsement \
         key. If the machine is yours, add the fingerprint to endorsement_keys in join-service.toml; the \
         join service reads the file again by itself.";
    BootstrapPlaneTicket = "TEC-B408", 403, "the ticket of the control plane is refused",
        "The ticket expired, is for another node or cluster, or control_plane_signers of join-service.toml \
         does not list the key that signed it.",
        "The message gives the reason. Create a new ticket with `tec ticket control-plane`, and save it on \
         the node, in the file set by control_plane_ticket in bootstrapper.toml.";
    BootstrapActivated = "TEC-B409", 409, "the node is already a member, or is becoming one",
        "Another Init is running or has run, or the node has joined.",
        "To resume an Init whose answer was lost, send the same request again, with --cluster unless its \
         keys are derived from a master secret.";
    BootstrapNameTaken = "TEC-B410", 409, "the name belongs to another node",
        "A member of the cluster has this name but a different attestation key: two instances have the same \
         name, or the machine was replaced. Or a member of this name was removed, and its client certificate \
         has not expired.",
        "Give the instance another name. If it replaces a member, remove that member from the cluster first, \
         with --dangerous-free-name if its old disk is erased.";
    BootstrapWrongKey = "TEC-B412", 412, "the keys do not open the disk",
        "The keys belong to another cluster, or the disk belongs to another machine.",
        "Check the key service; `tec node recover --check` tries keys without recovering.";
    BootstrapSmallDisk = "TEC-B413", 413, "the state disk is too small",
        "The disk has no room for the LUKS2 header, the integrity tags and a file system.",
        "Attach a disk of 64 MiB or more; etcd and the container images of a node need several GiB.";
    BootstrapForeignDisk = "TEC-B415", 415, "the state disk already contains data",
        "The disk has a file system, a partition table, or a LUKS header that this boot did not write. The \
         person who formatted a LUKS disk may know its volume key, which a new passphrase does not change.",
        "Set device to another disk, or erase this one with `bootstrapper prepare --dangerous-erase`.";
    BootstrapHeader = "TEC-B422", 422, "the header of the state disk is refused",
        "The header is damaged, or names a cipher, key derivation, sector size or integrity that \
         `bootstrapper prepare` does not write.",
        "Inspect it with `cryptsetup luksDump` and restore it from a backup. If the data is not needed, \
         erase the disk with `bootstrapper prepare --dangerous-erase`.";
    BootstrapLocked = "TEC-B423", 423, "the state disk must be recovered first",
        "A cluster holds the key of the disk, and this boot has not received it.",
        "`tec-recover.service` asks the join services for the key; if none of them gives it, run `tec node \
         recover`.";
    BootstrapNotPrepared = "TEC-B424", 424, "the node cannot be prepared",
        "There is a problem with the disk or a component, or the kubeadm preflight check failed; nothing was \
         changed.",
        "The node's log names the problem; `tec node init` prints it. You can run the same command again.";
    BootstrapClock = "TEC-B425", 425, "the clock of the node is wrong",
        "The clock is earlier than this release, or outside the validity period of a certificate that the \
         cluster has just issued, for example because of an empty battery or a missing time server.",
        "Compare `date -u` on the node with another machine, and set the clock or the time server; the node \
         continues by itself.";
    BootstrapKeyService = "TEC-B502", 502, "the node cannot use the key service",
        "The key service does not answer or refuses the node, or this build of the node does not support it.",
        "The node's log gives the reason. Nothing was changed.";
    BootstrapUnreachable = "TEC-B503", 503, "the node does not answer",
        "The node is not up yet, its bootstrapper has exited because the node is a member, or a firewall \
         blocks the connection.",
        "Init is served on port 9000 until the node is a member, Recover on port 9999 until its disk is \
         open.";
    BootstrapMetadata = "TEC-B504", 504, "the platform does not describe this instance",
        "The metadata service does not answer, or its answer has no valid name, role, address, API server or \
         hash of the init secret.",
        "The message names the field. Check the tags of the instance and [metadata] of bootstrapper.toml; \
         the node retries by itself.";
    BootstrapStateFull = "TEC-B507", 507, "the state disk is full",
        "The file system of the state directory, or its quota, has less than 16 MiB left.",
        "Free space below the state directory, or attach a larger disk.";
    BootstrapMembersFull = "TEC-B509", 507, "the registry of members is full",
        "The ConfigMap tec-members has a line for each member and for the disk of each removed member; it \
         holds about two thousand members or five thousand removed ones.",
        "Remove members that are gone, or create another cluster: the disks of removed members stay on \
         record permanently.";
    BootstrapDefect = "TEC-B500", 500, "the node failed for an unknown reason",
        "The node runs another version, or has a defect.",
        "Read the log of the bootstrapper: `journalctl -u tec-bootstrapper` on the node.";

    AuthorityElsewhere = "TEC-M503", 503, "this trust anchor no longer approves anything",
        "The authority moved to another trust anchor; this one only releases the keys that it has.",
        "Register at the other anchor, which `tec migrate status` names; or take the authority back with \
         `tec migrate rollback`.";
    AnchorStandsBy = "TEC-M504", 503, "this trust anchor is on standby",
        "It is the target of a migration that has not been cut over, so it serves no nodes yet.",
        "Nodes try the next server on their list by themselves; run `tec migrate cutover` when everything is \
         copied.";
    AnchorReplaced = "TEC-M410", 410, "this trust anchor was replaced by another",
        "The migration was cut over and this anchor was retired.",
        "Point nodes to the servers of the other anchor, and switch this one off.";
    AuthorityMoved = "TEC-M412", 409, "the state of the migration does not allow this",
        "Another admin or an earlier run moved the authority forward or back.",
        "Check `tec migrate status`, and run the command for the state that it shows.";
    TrustForeign = "TEC-M421", 409, "the trust anchors do not belong together",
        "One of them is paired with another anchor, or holds the trust of another cluster.",
        "Check that the command names the right anchors; a target accepts the trust of one source only.";
    TrustConflict = "TEC-M409", 409, "the target holds something else under the same name",
        "At the target, a machine has a different disk key or attestation key, an image of the same name has \
         different measurements, or policies or certificates differ. Nothing was overwritten.",
        "The list names each conflict; remove the wrong object at the target or at the source, or keep a \
         policy or CA of the target with --keep-target, and run the command again.";
    TrustIncomplete = "TEC-M422", 409, "the target does not have everything that the source has",
        "The copy is incomplete, one side changed in the meantime, or a Trustee of the target lags behind. \
         If an earlier release cut over, the source still has the only copy of the recovery keys.",
        "Run `tec migrate apply`, then `tec migrate verify`; the list names what is missing or differs. \
         After a cutover, run `tec migrate rollback` and `tec migrate cutover` instead.";
    TransferMalformed = "TEC-M400", 400, "not a TEC backup or transfer file",
        "The file does not begin like the output of `tec backup create`, or its manifest is malformed.",
        "Pass the file that `tec backup create` wrote.";
    TransferTruncated = "TEC-M416", 400, "the transfer file is truncated",
        "The file ends before its last part; nothing that depends on the rest was used.",
        "Copy the file again and compare its length.";
    TransferAltered = "TEC-M401", 401, "the transfer file was altered",
        "The signature of the manifest or of a part does not match its content.",
        "Create the transfer again, and find out who had access to the file.";
    TransferForeign = "TEC-M403", 403, "the transfer file is for another anchor, or from an unexpected one",
        "The file is encrypted to another key, or signed by an anchor that you did not name.",
        "Pass the identity that the transfer was encrypted to, and the public key of the anchor that created \
         it.";
    TransferReplayed = "TEC-M425", 409, "the transfer file is older than the state of this anchor",
        "A later transfer was restored here, or the authority moved since it was created.",
        "Create a new transfer. Restore a backup into a new state directory.";
    TransferVersion = "TEC-M505", 400, "the transfer file was written by a newer version",
        "The version in its manifest is higher than this program supports.",
        "Use the newer program on both sides.";

    VaultSecretMissing = "TEC-V510", 503, "the vault's wrapping key is missing",
        "The vault is initialized, or its controller's certificate says that it was, but the Secret with the \
         key that wraps its unseal key was deleted.",
        "Restore the Secret from a backup. The vault cannot create a new key without the old one: while it \
         is unsealed, copy its contents elsewhere. To start over, delete its storage and the Secret of the \
         controller's certificate; a new Secret alone cannot unseal the vault.";
    VaultKeyFileMissing = "TEC-V511", 503, "the vault's wrapped key is missing",
        "The vault is initialized, but the file with its wrapped unseal key is not on the volume.",
        "Restore the file from a backup, or attach the volume that belongs to this vault; with several pods, \
         copy the file from the volume of another one. The vault cannot create a new key without the old \
         one: while it is unsealed, copy its contents elsewhere.";
    VaultKeyBroken = "TEC-V512", 503, "the vault's wrapped key cannot be decrypted",
        "The file and the Secret do not belong together, or the file was altered.",
        "Restore the file and the Secret that were written together; each contains its key ID.";
    VaultUnsealRefused = "TEC-V513", 503, "the vault refuses its unseal key",
        "The storage and the wrapped key belong to different vaults.",
        "Attach the storage and the file that were written together.";
    VaultNotFirst = "TEC-V514", 503, "only the first pod initializes a vault",
        "This pod is not number 0, and no pod of the vault is initialized.",
        "Start pod 0 and read its log; check that this pod can reach it.";
    VaultStorageLost = "TEC-V515", 503, "the vault's storage is empty",
        "According to the Secret, the vault was set up, but its storage is empty.",
        "Attach the right volume, or restore a snapshot. To give up its contents, delete the Secrets with \
         the wrapping key and with the controller's certificate.";
    VaultCaNotMounted = "TEC-V516", 503, "the authority's certificate cannot be used",
        "The Secret of the controller's certificate is not mounted, is not PEM, or has expired.",
        "Check the volume of the pod, and that the controller has published its certificate.";
    VaultConflict = "TEC-V517", 409, "unexpected object in the vault",
        "Someone changed an engine, an authority or a key in a way that cannot be undone without loss.",
        "The log names the object: restore it manually, or move it away so that it is created again.";
    VaultSnapshotBroken = "TEC-V530", 400, "the vault's snapshot cannot be used",
        "The file is truncated, was altered, or is not a snapshot of OpenBao. Nothing was restored.",
        "Copy the file again and compare its length, or use another snapshot.";
    VaultSnapshotForeign = "TEC-V531", 409, "the wrapped key does not open the vault's snapshot",
        "Snapshot and wrapped key belong to different vaults, or the vault's own key was replaced between \
         them. The vault is empty again.",
        "Use the wrapped key that was written with the snapshot: the same name, with the ending `.key`.";
    VaultNotEmpty = "TEC-V532", 409, "a snapshot is restored into an empty vault only",
        "The vault is initialized, its volume has a wrapped key, its seal is not Shamir, or the Secret does \
         not come from a backup. Nothing was changed.",
        "Create the Secret with the wrapping key from the backup before you install the chart, so that the \
         vault stays empty. To replace a vault that is in use, delete its volume and its Secret first.";
    VaultSnapshotExists = "TEC-V533", 409, "another snapshot has this name",
        "The directory has a file with this name and another content. Nothing was changed.",
        "Compare both with `services-bootstrap snapshots sums`. To replace the file, remove it first.";
    VaultSnapshotNotCopied = "TEC-V534", 503, "the file of a snapshot was not copied",
        "It does not exist, another copy is running, or it needs more than half of the free space.",
        "The cause follows the message: check the name with `snapshots list`, free space, and copy it again.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_well_formed() {
        let mut texts: Vec<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(code.as_str().parse::<Code>().unwrap(), *code);
            assert!((400..600).contains(&code.http_status()), "{code}");
            assert!(code.cause().ends_with('.') && code.fix().ends_with('.'), "{code}");
            // `tec explain` prints the fix, and its readers may not have the repository.
            for leads_nowhere in ["`tec explain", " docs/", "tec-k8s/"] {
                assert!(!code.fix().contains(leads_nowhere), "{code}: {leads_nowhere}");
            }
        }
    }
}
