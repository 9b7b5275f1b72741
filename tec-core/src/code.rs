//! Error codes: one per thing that can go wrong for a person, with cause and fix.
//!
//! A remote caller is told the code and the title, nothing else; the detail goes to the log and to
//! `tec explain`. Each code has a page `docs/errors/<code>.md`, written by `cargo xtask codegen`
//! from this table.

use std::fmt;

/// Where the pages are.
const PAGES: &str = "https://github.com/trusted-execution-clusters/tec/blob/main/docs/errors/";

macro_rules! codes {
    ($($name:ident = $text:literal, $status:literal, $title:literal, $cause:literal, $fix:literal;)*) => {
        /// An error code. Families: R register, A attest, K key, P policy, T TLS, I image,
        /// S store, C cluster, N node, B bootstrap of nodes, M migration of trust, V vault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = concat!("`", $text, "`: ", $title, ".")] $name,)*
        }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The code as it is printed.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// Address of its page.
            pub fn url(self) -> String {
                format!("{PAGES}{self}.md")
            }

            /// HTTP status that goes with it.
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$name => $status),* }
            }

            /// One public sentence, without detail that would help an attacker.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),* }
            }

            /// The usual cause.
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$name => $cause),* }
            }

            /// What to do.
            pub const fn fix(self) -> &'static str {
                match self { $(Self::$name => $fix),* }
            }
        }
    };
}

codes! {
    RegisterMalformed = "TEC-R400", 400, "the request is malformed",
        "The body is not the JSON that the endpoint takes, has unknown fields, or an id is not a UUID.",
        "Send {\"public_key\": \"<PEM>\", \"uuid\": \"<machine id>\"}; see docs/reference/http.md.";
    RegisterToken = "TEC-R401", 401, "a valid registration token is needed",
        "The server was started with a registration token, and the request carries none or another one.",
        "Put the header Authorization: Bearer <token> into the merge directive of the node's Ignition config.";
    RegisterByAdmin = "TEC-R403", 403, "machines are registered by an admin here",
        "The registration policy is manual, so nodes get no config by themselves.",
        "Add the machine with `kubectl tec machine add`, and put its Ignition config in by hand.";
    RegisterMachineUnknown = "TEC-R404", 404, "no such machine is waiting for an attestation key",
        "The machine id was never registered, has expired unclaimed, or the machine was removed.",
        "Boot the node again so that it registers, or add the machine with `tec machine add`.";
    RegisterMethod = "TEC-R405", 405, "the method is not allowed here",
        "The endpoint exists, but takes another HTTP method.",
        "GET the Ignition config, PUT the attestation key.";
    RegisterAkKnown = "TEC-R409", 409, "Public key already registered",
        "This attestation key is already registered for this machine.",
        "Nothing: a node that registers its own key again may go on.";
    RegisterMachineTaken = "TEC-R410", 409, "the machine already has an attestation key",
        "Trust on first use: the first key wins, and a second one for the same machine is refused.",
        "If the node was reinstalled or its TPM replaced, revoke the old key with `tec ak revoke` and approve \
         the new one with `tec ak approve`.";
    RegisterNotFound = "TEC-R411", 404, "there is nothing at this path",
        "The path is none of the endpoints of this server.",
        "See docs/reference/http.md for the paths.";
    RegisterKeyElsewhere = "TEC-R412", 409, "the attestation key belongs to another machine",
        "A node with this TPM was registered before, under another id: it was reinstalled, or lost its \
         power during its first boot. A node goes on as the machine that the answer names by itself; \
         one that older programs run, or whose pin has a path of its own, does not.",
        "Remove the old machine with `tec machine remove` (`tec ak list` names it), then register again.";
    RegisterTooLarge = "TEC-R413", 413, "the body is too large",
        "Registration bodies are capped at 64 KiB.",
        "A registration carries one public key; check what the client sends.";
    RegisterContentType = "TEC-R415", 415, "the content type must be application/json",
        "The Content-Type header names another type.",
        "Send Content-Type: application/json.";
    RegisterKeyRefused = "TEC-R422", 422, "the attestation key is not acceptable",
        "The key is no RSA key of 2048 to 4096 bits with exponent 65537 nor an ECC P-256 key in PEM \
         (SubjectPublicKeyInfo), or its TPM area does not say restricted signing key.",
        "Create the key with `node-agent ak create`, or as a restricted, fixedTPM signing key.";
    RegisterEkProof = "TEC-R423", 403, "the attestation key is not proven by an endorsement key",
        "The server approves only keys that a TPM's endorsement key vouches for, and the proof is \
         missing, failed, or expired.",
        "Use a node-agent that answers credential activation, or start the server with --ak-approval tofu.";
    RegisterRebind = "TEC-R424", 403, "an admin must approve the new key of this machine",
        "The machine had another attestation key before, which was revoked or deleted. First use is once in \
         the life of a machine, so that nobody else gets its disk key while an admin replaces a TPM. The \
         key is kept and waits (status 202, `pending`).",
        "Compare the fingerprint with `node-agent ak show` on the node, then `tec ak approve <fingerprint>` \
         (on Kubernetes `kubectl tec ak approve <name>`). With --ak-approval ek the same TPM needs no admin.";
    RegisterEkRefused = "TEC-R425", 403, "the endorsement key is not trusted here",
        "The server trusts only endorsement keys whose certificate chains to one of its CA certificates (--ek-roots, \
         on Kubernetes spec.approval.endorsementRootsConfigMap). This one has no certificate, or another one.",
        "See the server's log for the reason. If the TPM is genuine, add its manufacturer's CA certificate.";
    RegisterRate = "TEC-R429", 429, "too many requests",
        "The rate limit of the registration endpoints or of the key broker was reached.",
        "Wait; nodes retry by themselves with back-off. Raise --register-rate or --kbs-rate for a large first boot.";
    RegisterFull = "TEC-R430", 429, "too many machines wait to be claimed",
        "The cap on machines without an attestation key was reached, so no new one is registered.",
        "Remove strays with `tec machine prune`, wait for their expiry, or raise --max-unclaimed.";
    RegisterQuarantined = "TEC-R431", 429, "too many machines were claimed by first use",
        "As many machines as may be, in all or from this network, were bound by trust on first use. The key \
         is kept and waits for an admin (status 202, `pending`); its machine expires like any unclaimed one.",
        "Approve it with `tec ak approve <fingerprint>`, remove machines that nobody knows with `tec machine \
         remove`, or raise --max-claimed and --max-claimed-per-source (on Kubernetes spec.approval).";
    RegisterUnavailable = "TEC-R503", 503, "the service cannot answer now",
        "The store behind the server failed.",
        "See the server's log at this time for a TEC-S code.";

    RegisterNotReady = "TEC-R504", 503, "the service is not set up yet",
        "The TrustedExecutionCluster is missing or has no publicTrusteeAddr, or the CA of a server that \
         nodes shall trust is not there, or one of additionalTrustees is invalid, or the CA certificates of endorsement keys are not. Nothing was \
         registered.",
        "See the server's log for what is missing; nodes retry by themselves.";

    RegisterLowSpace = "TEC-R507", 507, "registration is paused: the disk is nearly full",
        "Less space is free at the state directory than --reserve-mib. What is left is for audit lines, \
         without which no disk key is released.",
        "Free or add space; nodes retry by themselves. Known nodes still unlock.";

    EvidenceMalformed = "TEC-A400", 400, "the evidence is malformed",
        "The evidence is not what its type prescribes, is truncated, or is too large.",
        "Check that attester and server speak the same protocol version (0.4.0).";
    ServerUnreachable = "TEC-A401", 503, "the server cannot be reached",
        "No server of the list answered: network, name resolution, firewall, or the server is down.",
        "Check the address in the Clevis pin and that the KBS listens there.";
    TlsFailed = "TEC-A402", 503, "the TLS connection failed",
        "The server's certificate is expired, names another host, or is not from the pinned CA.",
        "Compare the CA in the pin with the server's; check the node's clock.";
    MachineUnknown = "TEC-A403", 401, "the machine is not known",
        "The machine was never registered, was removed, or was revoked.",
        "See `tec machine list`; register the machine again if it is yours.";
    NoAttempt = "TEC-A410", 404, "no boot is recorded",
        "No evidence was sent to this server: the node has not booted since it registered, or does not reach \
         the key broker.",
        "Start the node. If it is up, compare the address in its Clevis pin with `tec status`, and read its console.";
    AkNotBound = "TEC-A404", 401, "the attestation key is not bound to this machine",
        "The key that signed is unknown, waits for approval, was revoked, or belongs to another machine.",
        "See `tec ak list`; approve with `tec ak approve`, or register the node again.";
    QuoteInvalid = "TEC-A405", 401, "nonce or signature do not fit",
        "The quote is signed by another key, is for another nonce (old evidence), or is not a quote.",
        "Boot the node again. If it persists on one node only, suspect a replay.";
    SelectionWrong = "TEC-A406", 401, "the PCR selection is not as pinned",
        "The quote must select SHA-256 PCRs 0 to 23 once, and come with exactly those values.",
        "Use an attester that quotes sha256:0-23 in one selection.";
    EventLogMismatch = "TEC-A407", 401, "the event log does not replay to the quoted PCRs",
        "The log is truncated, was altered, or a register was extended without a log entry.",
        "Read the log with `tec eventlog show` on the node, and what was refused with `tec explain` on the server; suspect tampering if firmware is unchanged.";
    TpmSetBack = "TEC-A408", 401, "the TPM does not go on where it was",
        "The counts and the clock in the quote are not after those of the last one of this key: the state \
         of an emulated TPM runs in two places, or an older one was restored from a snapshot.",
        "Find out which machine is the right one: whoever has a copy of the TPM's state can obtain its \
         disk key. If a snapshot was restored, boot the node again; if it is refused still, run `tec \
         machine readmit`, or on Kubernetes `kubectl tec machine readmit`. Otherwise clear the \
         TPM, revoke the key with `tec ak revoke`, register the node again, and approve its new key with \
         `tec ak approve`.";
    PcrMismatch = "TEC-A412", 401, "the boot is not one of an approved image",
        "A measured component is not the approved one: another kernel, boot loader, or an image whose \
         approval ended.",
        "See `tec explain <machine>` for the component; approve the image, or boot an approved one.";
    ReleaseDenied = "TEC-A413", 401, "the release policy does not allow this",
        "The attested machine asked for a path that is not its own, or the policy denies it.",
        "Check the path in the node's Clevis pin: it must be default/<its own id>/root.";
    TargetNotNamed = "TEC-K403", 403, "no keys are published to this Trustee",
        "No Secret names its URL, or the URL is not https. Whoever edits the cluster object alone must not send disk keys anywhere.",
        "Put the exact URL into the entry `url` of the Secrets that the target names; the message has the command.";
    EscrowRefused = "TEC-K409", 409, "the recovery key is not kept",
        "The machine left 64 recovery keys already, or what it sent is no sealed key.",
        "Look at them with `tec machine recovery-key`. A machine that made them in error is removed and registered anew.";
    MachineQuarantined = "TEC-A423", 401, "the machine is quarantined",
        "An admin quarantined this machine: it may attest, but gets no disk key until it is released. Its key is kept.",
        "Find out why (`tec audit` or `kubectl tec machine show`), then run `tec machine release <machine>` (on \
         Kubernetes `kubectl tec machine release <machine>`), or retire or revoke the machine.";
    KeyMissing = "TEC-A414", 401, "there is no key at this path",
        "The machine attested well, but no key was stored for it, or it was removed.",
        "If the key was lost, restore the store from a backup; a new key cannot open the old disk.";

    KeySealed = "TEC-K500", 503, "a stored key cannot be unsealed",
        "The seal key file is not the one that the keys were sealed with, or a record was altered.",
        "Put back the seal key file that belongs to this store.";
    PolicyInvalid = "TEC-P400", 400, "the policy does not compile",
        "The Rego text has an error, or its package is not `policy`.",
        "Try it offline first; the error names line and column.";
    TlsMaterial = "TEC-T500", 503, "certificate or private key cannot be used",
        "The file is missing, is not PEM, or certificate and key do not belong together.",
        "Check the files; give both --tls-cert and --tls-key, or none for the built-in CA.";
    CertManagerMissing = "TEC-T404", 404, "cert-manager is not installed",
        "The cluster object names an issuer of cert-manager, and the API server does not know the kind Certificate of \
         cert-manager.io/v1.",
        "Install cert-manager. Without it, create the cluster object again without spec.certificateIssuer.";
    CertificatePending = "TEC-T503", 503, "cert-manager did not issue a certificate yet",
        "The issuer does not exist, is not ready, refuses a name, or hands out no ca.crt, which nodes pin.",
        "`kubectl describe certificate` and `kubectl get certificaterequest` show why. Use an issuer that fills ca.crt.";
    CaHeldBack = "TEC-T409", 409, "machines do not trust the next CA yet",
        "The CA of the servers is being replaced, and some machines did not report that their disks trust the next \
         one: they are off, run no node-agent refresh-ca, or have another implementation of the Clevis pin.",
        "Switch them on, install the timer tec-refresh-ca or run `node-agent refresh-ca`, or retire those that are \
         gone; see docs/how-to/replace-the-ca.md.";
    ImageUnreadable = "TEC-I400", 400, "the image cannot be read",
        "No shim, boot loader or kernel was found, or a file is corrupt.",
        "Give the root of the image's file tree; the error names the file and the offset.";
    ImageReference = "TEC-I402", 400, "the image is not referenced by digest",
        "The reference is not of the form `registry.example/repository@sha256:<64 digits>`.",
        "Take the digest from where the image was pushed, for example with `skopeo inspect`.";
    ImageDenied = "TEC-I403", 403, "the registry does not let this image be read",
        "The image is private, and no pull secret fits, or its credentials are wrong or have expired.",
        "Give a pull secret for this registry, with the right to pull.";
    ImageSecret = "TEC-I405", 400, "the pull secret cannot be used",
        "The file is not of the form kubernetes.io/dockerconfigjson.",
        "Make it with `kubectl create secret docker-registry`.";
    ImagePlatform = "TEC-I406", 404, "the image is not there for this platform",
        "The index lists no image for the operating system and architecture, or several.",
        "Approve the digest of the image for the nodes' platform.";
    ImageTooLarge = "TEC-I413", 413, "the image is too large",
        "Its manifest, its configuration or all of its layers are larger than what is read.",
        "Check that the reference names an operating system's image.";
    ImageBomb = "TEC-I415", 413, "the image is a decompression bomb",
        "It unpacks to more than 128 MiB and a hundred times its size, or to more than 64 GiB. No image of an \
         operating system does.",
        "Check where the file comes from. A disk that is mostly empty is given as it is, not packed.";
    ImageAbsent = "TEC-I414", 404, "the registry has no such image",
        "It was deleted there, never pushed, or the reference names another repository; some \
         registries say this of private images, too.",
        "Compare the reference with the registry; give a pull secret if the image is private.";
    ImageAltered = "TEC-I424", 502, "what the registry sent is not what the digest names",
        "Somebody altered the image on its way or in the registry, or a mirror is broken.",
        "Look at the registry or mirror that the log names; nothing of what it sent was used.";
    ImageLabel = "TEC-I425", 422, "the image's label with PCR values cannot be used",
        "The label org.coreos.pcrs is not of its form, or its events do not fold to its values.",
        "Build the image with a label that `compute-pcrs all` printed, or without one.";
    RegistryAnswer = "TEC-I502", 502, "the registry's answer cannot be used",
        "What answered is no registry, or one that speaks another protocol.",
        "Check the host of the reference, and mirrors.";
    RegistryUnreachable = "TEC-I503", 503, "the registry cannot be reached",
        "Name resolution, network, TLS, or the registry failed, or it asked to come back later.",
        "Check from the same network; the CA of a private registry must be given.";
    BundleSignature = "TEC-I401", 401, "no given key signed the bundle of reference values",
        "The bundle was changed after it was signed, or another key signed it.",
        "Fetch bundle and signature again; give the public key of whoever built the image with --key.";
    BundleImage = "TEC-I409", 409, "the bundle of reference values is about another image",
        "The digest in the bundle is not the one that was asked for.",
        "Take the bundle that was made for this very build of the image.";
    BundleExpired = "TEC-I410", 410, "the bundle of reference values has ended",
        "The end that the signer set is past, or the clock is wrong.",
        "Ask the signer for a new bundle of the image; check the clock.";
    BundleMalformed = "TEC-I422", 422, "the bundle of reference values is malformed",
        "Bundle, signature or key is not of the form that `tec pcr bundle` writes and takes.",
        "Sign with `tec pcr bundle sign`; keys are on P-256, in PEM.";
    ImageUnknown = "TEC-I404", 404, "there is no image of this name",
        "The image was never approved.",
        "See `tec image list`.";

    StoreCorrupt = "TEC-S500", 503, "the store is damaged",
        "The database file fails its integrity check, or is not a TEC store.",
        "Stop the server, keep the file, and restore the last backup.";
    StoreFull = "TEC-S507", 503, "the disk is full",
        "The store could not write; nothing of the request was kept.",
        "Free space on the disk of the state directory. The server resumes by itself.";
    StoreAccess = "TEC-S403", 503, "the state directory is not accessible to this user, or open to others",
        "Files with keys belong to the user of the server and are closed to all others.",
        "Run the command as the user of the server. If the mode is wrong, chmod 700 the directory and 600 its files.";
    StoreVersion = "TEC-S505", 503, "the store was written by a newer version",
        "The schema version in the file is higher than this program knows.",
        "Use the newer program; stores are not downgraded.";
    StoreUnavailable = "TEC-S503", 503, "the store cannot be used now",
        "The database is locked by another process, or the writer stopped.",
        "Check for a second server on the same state directory.";
    SettingsConflict = "TEC-S409", 409, "a flag contradicts the settings of the state directory",
        "`tec bootstrap init` wrote the settings to tec.toml, and nodes keep what they were given then.",
        "Leave the flag out. To change a setting, edit tec.toml, then start the server.";
    SettingsMalformed = "TEC-S422", 422, "the settings of the state directory are malformed",
        "tec.toml is not TOML, or a key in it is not the long name of a flag of `tec serve`.",
        "Correct the line that the message names; `tec serve --help` lists the flags.";
    ServerRunning = "TEC-S410", 409, "a server runs on this state directory already",
        "Another `tec serve` holds the lock of the state directory.",
        "Stop the other server first, or give this one a --state-dir of its own.";

    ClusterForbidden = "TEC-C403", 403, "the cluster does not allow this",
        "The user of the kubeconfig has no right to it, or the credentials ended.",
        "Ask for a role of kustomize/users, for example machine-admin-role; `kubectl auth whoami` says who asks.";
    ClusterMissing = "TEC-C404", 404, "there is no such object in the cluster",
        "The name or the namespace is another one, or the custom resources are not installed.",
        "Look at --namespace, and run `kubectl tec check`.";
    ClusterConflict = "TEC-C409", 409, "the cluster holds something else",
        "An object of this name is there already, somebody changed it meanwhile, or there is more than one where one may be.",
        "Look at what is there, and try again.";
    ClusterRefused = "TEC-C422", 422, "the cluster refuses this object",
        "A field is malformed, or may not be changed once it is set.",
        "The message names the field; see the custom resources in tec-k8s/crds.";
    ClusterUnreachable = "TEC-C503", 503, "the API server of the cluster does not answer",
        "The kubeconfig names another cluster, the network is down, or the API server has a fault.",
        "Try `kubectl get --raw /readyz` with the same context.";
    ClockSkewed = "TEC-C425", 503, "the server's clock is wrong",
        "The clock of the host that runs the server differs from the API server's by more than 30 seconds. Servers \
         register no node and release no key; the operator issues and renews no certificate, removes no unclaimed \
         machine, and publishes only images that are approved by both clocks. Revocations still take effect.",
        "The server's log and the condition `Ready` of the cluster object say by how much. Find out which of the two \
         hosts is wrong (`chronyc tracking` on both) and synchronize its clock; everything resumes by itself.";
    NodeTpm = "TEC-N500", 503, "the TPM cannot be used",
        "There is no TPM, it is busy, or the resource manager is missing.",
        "Check /dev/tpmrm0, or name another TPM with --tcti.";
    NodeHandle = "TEC-N409", 409, "the attestation key's handle holds something else",
        "Another object lies at the persistent handle 0x81010002.",
        "Evict it, or give another --ak-handle on all commands.";
    NodeLockout = "TEC-N423", 503, "the TPM is in lockout",
        "Somebody tried wrong passwords at the TPM, and the attestation key is of a version that did not exempt it from the protection against that.",
        "Wait for the TPM's recovery time, or run `tpm2_dictionarylockout --clear-lockout`; a new attestation key is exempt.";
    NodeConfig = "TEC-N400", 400, "the pin's configuration is malformed",
        "The JSON handed to the Clevis pin is not a trustee configuration.",
        "See docs/reference/clevis-pin.md.";
    NodeHeader = "TEC-N422", 422, "the sealed header cannot be opened",
        "The JWE in the LUKS token is damaged, or the key that was released is not the one it was made with.",
        "Look at it with `clevis luks list`; use the recovery key if the token is lost.";
    NodeDisk = "TEC-N424", 500, "the header of the disk cannot be read or changed",
        "The device is not LUKS2, no token of the pin trustee is on it, its passphrase opens nothing, or cryptsetup failed.",
        "Look at it with `cryptsetup luksDump` and `clevis luks list`. Running the same command again is safe.";
    NodeClock = "TEC-N425", 503, "the server's certificate is not valid at the time of the node's clock",
        "The clock of the node is wrong: an empty battery, or no time from the network in the initramfs. Or \
         the certificate has expired.",
        "Compare `date` on the node with the dates of the server's certificate. Set the clock in the firmware's \
         settings, or renew the certificate; the node goes on by itself.";
    NodeFull = "TEC-N507", 507, "there is no room to write",
        "The file system, or the quota, that the node writes to is full.",
        "Make room, and run the same command again: nothing was lost.";

    BootstrapRequest = "TEC-B400", 400, "the node cannot take the request",
        "A URI of keys or storage, or a component, is malformed or of a sort that the node was not built with.",
        "The message names the member; see docs/how-to/bootstrap-nodes.md.";
    BootstrapSecret = "TEC-B401", 401, "the init secret is not that of the node",
        "The node was given the hash of another secret by its platform.",
        "Compare the hash in the node's metadata with the secret; nothing was changed on the node.";
    BootstrapUntrusted = "TEC-B403", 403, "the node's evidence is refused",
        "The node has another attestation key or other measurements than expected, is in a cluster \
         already, or somebody on the network path answers in its place.",
        "Look at it with `tec node verify`, which lists every check. Send it nothing before that passes.";
    BootstrapNoDisk = "TEC-B404", 404, "the state disk is missing",
        "The device that [disk] of bootstrapper.toml names does not exist: the disk is not attached, its partition has \
         another label, or udev has not found it yet.",
        "Attach the disk, or set device to a path that `lsblk -o PATH,PARTLABEL` shows. The unit tries again every \
         five seconds.";
    BootstrapReadOnly = "TEC-B405", 405, "the state disk is read-only",
        "The disk is attached read-only, or the kernel stopped writing to its file system after an I/O error.",
        "Attach the disk writable. If `journalctl -k` shows I/O errors, replace the disk.";
    BootstrapUnlisted = "TEC-B406", 406, "the node does not list the key service",
        "Recover names a key service or a store that recovery_key_services of the node's bootstrapper.toml does not \
         list. Nobody was asked.",
        "Add the URI of the message, which has no credentials, to recovery_key_services, or recover with the master \
         secret: keys that are derived from it ask nobody.";
    BootstrapEndorsement = "TEC-B407", 403, "the node's endorsement key is refused",
        "The certificate of the node's endorsement key expired or leads to none of endorsement_roots, the key is not \
         in endorsement_keys, or the node did not prove that its attestation key is in the same TPM.",
        "The message and the log of the join service give the reason and the fingerprint of the endorsement key. If \
         the machine is yours, add the fingerprint to endorsement_keys in join-service.toml; the join service reads \
         the file again by itself.";
    BootstrapPlaneTicket = "TEC-B408", 403, "the ticket of the control plane is refused",
        "The ticket expired, is for another node or cluster, or control_plane_signers of join-service.toml does not \
         list the key that signed it.",
        "The message says which. Make another one with `tec ticket control-plane`, and give it to the node as the \
         file of control_plane_ticket in bootstrapper.toml.";
    BootstrapActivated = "TEC-B409", 409, "the node is in a cluster, or about to be",
        "Another Init runs or ran, or the node has joined.",
        "To take up an Init whose answer was lost, send the very same one again, with --cluster \
         where its keys are not those of a master secret.";
    BootstrapNameTaken = "TEC-B410", 409, "the name belongs to another node",
        "A member of the cluster has this name and another attestation key: two instances have the same name, or the \
         machine was replaced. Or a member of this name was removed, and its client certificate has not expired.",
        "Give the instance another name. If it replaces a member, remove that member from the cluster first, with \
         --dangerous-free-name if its old disk is erased.";
    BootstrapWrongKey = "TEC-B412", 412, "the keys do not open the disk",
        "They are those of another cluster, or the disk is that of another machine.",
        "Check the key service; `tec node recover --check` tries keys without recovering.";
    BootstrapSmallDisk = "TEC-B413", 413, "the state disk is too small",
        "The disk has no room for the LUKS2 header, the integrity tags and a file system.",
        "Attach a disk of 64 MiB or more; etcd and the container images of a node need several GiB.";
    BootstrapForeignDisk = "TEC-B415", 415, "the state disk holds data of someone else",
        "The disk has a file system, a partition table, or a LUKS header that this boot did not write. Whoever formatted \
         a LUKS disk may know its volume key, which a new passphrase does not change.",
        "Set device to another disk, or erase this one with `bootstrapper prepare --dangerous-erase`.";
    BootstrapHeader = "TEC-B422", 422, "the header of the state disk is refused",
        "The header is damaged, or names a cipher, key derivation, sector size or integrity that `bootstrapper prepare` \
         does not write.",
        "Look at it with `cryptsetup luksDump` and restore it from a backup. If the data is not needed, erase the disk \
         with `bootstrapper prepare --dangerous-erase`.";
    BootstrapLocked = "TEC-B423", 423, "the state disk must be recovered first",
        "A cluster has the key of the disk, and this boot does not.",
        "`tec-recover.service` asks the join services for the key; if none of them gives it, run `tec node recover`.";
    BootstrapNotPrepared = "TEC-B424", 424, "the node cannot be prepared",
        "Its disk, a component, or the preflight of kubeadm is not as it must be; nothing was changed.",
        "The node's log says what; `tec node init` prints it. The same command may be given again.";
    BootstrapClock = "TEC-B425", 425, "the clock of the node is wrong",
        "The clock is earlier than this release, or outside the validity of a certificate that the cluster has just \
         issued: an empty battery, or no time server.",
        "Compare `date -u` on the node with another machine, and set the clock or the time server; the node continues \
         by itself.";
    BootstrapKeyService = "TEC-B502", 502, "the node cannot use the key service",
        "The service does not answer, refuses the node, or the node was not built with it.",
        "The node's log says why. Nothing was changed.";
    BootstrapUnreachable = "TEC-B503", 503, "the node does not answer",
        "It is not up yet, its bootstrapper has ended since it is a member, or a firewall is between.",
        "Init is served on port 9000 until the node is a member, Recover on port 9999 until its disk is open.";
    BootstrapMetadata = "TEC-B504", 504, "the platform does not say what this instance is",
        "The metadata service does not answer, or its answer has no valid name, role, address, API server or hash of \
         the init secret.",
        "The message names the member. Check the tags of the instance and [metadata] of bootstrapper.toml; the node asks \
         again by itself.";
    BootstrapStateFull = "TEC-B507", 507, "the state disk is full",
        "The file system, or the quota, of the state directory has less than 16 MiB left.",
        "Free space below the state directory, or attach a larger disk.";
    BootstrapMembersFull = "TEC-B509", 507, "the registry of members is full",
        "The ConfigMap tec-members has a line for each member and for the disk of each that was removed; it holds \
         about two thousand members, or five thousand that were removed.",
        "Remove members that are gone, or begin another cluster: the disks of removed members stay on record for good.";
    BootstrapDefect = "TEC-B500", 500, "the node failed in a way that it does not explain",
        "It is of another version, or has a defect.",
        "Its log says more.";

    AuthorityElsewhere = "TEC-M503", 503, "this trust anchor approves nothing any more",
        "The authority was given to another trust anchor; this one releases the keys that it has.",
        "Register at the other anchor, which `tec migrate status` names; or take the authority back with \
         `tec migrate rollback`.";
    AnchorStandsBy = "TEC-M504", 503, "this trust anchor stands by",
        "It is the target of a migration that has not been cut over, so it serves nobody yet.",
        "Nodes try the next server of their list by themselves; run `tec migrate cutover` when all is copied.";
    AnchorReplaced = "TEC-M410", 410, "this trust anchor was replaced by another",
        "The migration was cut over and this anchor was retired.",
        "Let nodes use the servers of the other anchor, and switch this one off.";
    AuthorityMoved = "TEC-M412", 409, "the state of the migration does not allow this",
        "Another admin, or an earlier run, moved the authority on or back.",
        "Look at `tec migrate status`, and run the command for the state that it shows.";
    TrustForeign = "TEC-M421", 409, "the trust anchors do not belong together",
        "One of them is paired with another anchor, or holds the trust of another cluster.",
        "Check that the command names the right anchors; a target takes the trust of one source only.";
    TrustConflict = "TEC-M409", 409, "the target holds something else under the same name",
        "A machine has another disk key or attestation key there, an image of this name measures \
         something else, or policies or certificates differ. Nothing was overwritten.",
        "The list names each; remove the wrong one at the target or at the source, or say that a policy or CA of \
         the target is right with --keep-target, and run the command again.";
    TrustIncomplete = "TEC-M422", 409, "the target does not hold all that the source holds",
        "The copy is incomplete, one side changed in the meantime, or a Trustee of the target lags behind. An anchor \
         that was cut over by an earlier release still has the only copy of the recovery keys.",
        "Run `tec migrate apply`, then `tec migrate verify`; the list names what is missing or differs. After a \
         cutover, run `tec migrate rollback` and `tec migrate cutover` instead.";
    TransferMalformed = "TEC-M400", 400, "the file is no transfer of trust",
        "The file does not begin as `tec backup` writes it, or its manifest is not of its form.",
        "Give the file that `tec backup` wrote.";
    TransferTruncated = "TEC-M416", 400, "the transfer of trust is cut off",
        "The file ends before its last part; nothing that depends on the rest was used.",
        "Copy the file again and compare its length.";
    TransferAltered = "TEC-M401", 401, "the transfer of trust was altered",
        "The signature of the manifest or of a part does not fit what is there.",
        "Make the transfer again; look into who had the file.";
    TransferForeign = "TEC-M403", 403, "the transfer of trust is not for this anchor, or not from the one named",
        "It is encrypted to another key, or signed by an anchor that was not named.",
        "Give the identity that the transfer was made for, and the public key of the anchor that made it.";
    TransferReplayed = "TEC-M425", 409, "the transfer of trust is older than what this anchor knows",
        "A later transfer was restored here, or the authority moved on since it was made.",
        "Make a new transfer. A backup goes into a new state directory.";
    TransferVersion = "TEC-M505", 400, "the transfer of trust was written by a newer version",
        "The version in its manifest is higher than this program knows.",
        "Use the newer program on both sides.";

    VaultSecretMissing = "TEC-V510", 503, "the vault's wrapping key is missing",
        "The vault is initialized, or its controller's certificate says that it was, but the Secret with the \
         key that wraps its unseal key was deleted.",
        "Restore the Secret from a backup. The vault has no call that makes a new key without the old one: \
         while it is open, copy out what it holds. To begin anew, delete its storage and the Secret of the \
         controller's certificate; a new Secret alone opens nothing.";
    VaultKeyFileMissing = "TEC-V511", 503, "the vault's wrapped key is missing",
        "The vault is initialized, but the file with its wrapped unseal key is not on the volume.",
        "Restore the file from a backup, or attach the volume that belongs to this vault; with several pods, \
         copy the file from the volume of another one. The vault has no call that makes a new key without \
         the old one: while it is open, copy out what it holds.";
    VaultKeyBroken = "TEC-V512", 503, "the vault's wrapped key does not open",
        "File and Secret do not belong together, or the file was altered.",
        "Put back the pair that was written together; each names its key id.";
    VaultUnsealRefused = "TEC-V513", 503, "the vault refuses its unseal key",
        "The storage belongs to another vault than the wrapped key.",
        "Attach the storage and the file that were written together.";
    VaultNotFirst = "TEC-V514", 503, "only the first pod initializes a vault",
        "This pod is not number 0, and no pod of the vault is initialized.",
        "Start pod 0, and see its log; check that this pod reaches it.";
    VaultStorageLost = "TEC-V515", 503, "the vault's storage is empty",
        "The Secret says that the vault was set up, but its storage holds nothing.",
        "Attach the right volume, or restore a snapshot. To give up what it held, delete the Secrets with the \
         wrapping key and with the controller's certificate.";
    VaultCaNotMounted = "TEC-V516", 503, "the authority's certificate cannot be used",
        "The Secret of the controller's certificate is not mounted, is no PEM, or has expired.",
        "Check the volume of the pod, and that the controller has published its certificate.";
    VaultConflict = "TEC-V517", 409, "an object in the vault is not as it must be",
        "Somebody changed an engine, an authority or a key in a way that cannot be undone without loss.",
        "The log names the object: put it back by hand, or move it away so that it is made again.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.as_str() == text)
            .ok_or_else(|| serde::de::Error::custom("unknown error code"))
    }
}

impl std::str::FromStr for Code {
    type Err = UnknownCodeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text).ok_or(UnknownCodeError)
    }
}

/// The text is none of the codes.
#[derive(Debug, thiserror::Error)]
#[error("unknown error code")]
#[non_exhaustive]
pub struct UnknownCodeError;

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
        }
    }
}
