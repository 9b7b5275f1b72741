# A machine may have the key of its own disk: default/<id>/root.
package policy

import rego.v1

default allow := false

allow if {
	data.plugin == "resource"
	path := data["resource-path"]
	count(path) == 3
	path[0] == "default"
	path[2] == "root"
	# Evidence of a further device vouches for nothing here, so there must be none.
	count(input.submods) == 1
	cpu := input.submods.cpu0
	cpu["ear.status"] == "affirming"
	is_string(cpu["tec.machine"])
	cpu["tec.machine"] == path[1]
}
