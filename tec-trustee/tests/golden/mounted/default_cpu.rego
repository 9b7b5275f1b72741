# DANGEROUS: approved boots of any machine whose key lies in the service's directory of keys.
# For Trustee v0.16 to v0.19 only; later ones trust keys by policy alone, and are denied here.
package policy

import rego.v1

default executables := 33

trust_claims := {
	"executables": executables,
	"instance-identity": 0,
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

executables := 3 if {
	not registers.ak_public
	approved("tpm_pcr4", registers.pcr04)
	approved("tpm_pcr14", registers.pcr14)
}

extensions := [claim | some claim in claims]

claims contains null if false

claims contains {"name": "tec.site", "key": -70010, "value": "north"} if registers
