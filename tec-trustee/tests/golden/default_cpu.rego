# Approved boots of machines whose attestation key is registered.
package policy

import rego.v1

default executables := 33

default instance_identity := 97

trust_claims := {
	"executables": executables,
	"instance-identity": instance_identity,
	"hardware": 0,
	"configuration": 0,
}

# Whether `value` is one of the approved values under `name`; no list, no approval.
approved(name, value) if {
	values := query_reference_value(name)
	is_array(values)
	value in values
}

registers := input.tpm if {
	input.tpm
}

registers := input["az-snp-vtpm"].tpm if {
	input["az-snp-vtpm"]
	input["az-snp-vtpm"].policy_debug_allowed == "false"
	approved("snp_measurement", input["az-snp-vtpm"].measurement)
	at_least(input["az-snp-vtpm"].reported_tcb_bootloader, "004")
	at_least(input["az-snp-vtpm"].reported_tcb_tee, "000")
	at_least(input["az-snp-vtpm"].reported_tcb_snp, "022")
	at_least(input["az-snp-vtpm"].reported_tcb_microcode, "213")
}

# Versions come as text of one to three digits; made three digits, they compare as text.
at_least(version, least) if {
	is_string(version)
	count(version) in [1, 2, 3]
	trim(version, "0123456789") == ""
	substring(concat("", ["00", version]), count(version) - 1, 3) >= least
}

# The machine that the key is bound to: the reference value of the key that signed says it. Revoked is
# null, unknown is null. The name is only a part of the key, so the whole key counts.
machine := known.machine if {
	is_string(registers.ak_public)
	part := substring(registers.ak_public, 44, 192)
	name := replace(replace(replace(part, "+", "-"), "/", "_"), "=", "")
	known := query_reference_value(concat("", ["tec-ak-", name]))
	is_object(known)
	known.ak == registers.ak_public
	is_string(known.machine)
}

instance_identity := 2 if machine

executables := 3 if {
	machine
	approved("tpm_pcr4", registers.pcr04)
	approved("tpm_pcr14", registers.pcr14)
}

extensions := [claim | some claim in claims]

claims contains {"name": "tec.machine", "key": -75001, "value": machine} if machine

claims contains {"name": "tec.site", "key": -70010, "value": "north"} if registers
