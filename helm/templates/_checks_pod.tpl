{{/* Of single pods: ports, environment, resources. */}}

{{/* What each pod of a pool says of itself must hold together. */}}
{{- define "tandem.checkPod" -}}
{{- $p := .pool -}}
{{- $r := .role -}}
{{- $instances := div $p.gpusPerNode $p.tp -}}
{{- include "tandem.checkPorts" (dict "part" $r "ranges" (list (list "grpc" $p.ports.grpc $instances) (list "metrics" $p.ports.metrics $instances) (list "rendezvous" $p.ports.rendezvous 1) (list "health" $p.ports.health 1))) -}}
{{- $taken := list -}}
{{- if .root.Values.rdma.enabled -}}
{{- range include "tandem.rdmaEnvironment" .root | fromYamlArray -}}
{{- if has .name $taken -}}
{{- fail (printf "rdma.env.%s: other values of rdma set it already" .name) -}}
{{- end -}}
{{- $taken = append $taken .name -}}
{{- end -}}
{{- end -}}
{{- include "tandem.checkEnvironment" (dict "root" .root "part" $r "entries" $p.extraEnv "taken" $taken) -}}
{{- include "tandem.checkResources" (dict "part" $r "resources" $p.resources) -}}
{{- $limit := dig "limits" "memory" "" $p.resources -}}
{{- if and $limit (ge (include "tandem.quantity" $p.shm | float64) (include "tandem.quantity" $limit | float64)) -}}
{{- fail (printf "%s.shm = %s: counts against resources.limits.memory = %v and must be below it" $r $p.shm $limit) -}}
{{- end -}}
{{- if eq $r "decode" -}}
{{- $draining := int (default 48 $p.settings.draining_blocks_limit) -}}
{{- $landing := int (default 64 $p.settings.landing_blocks) -}}
{{- if gt $draining $landing -}}
{{- fail (printf "decode.settings.draining_blocks_limit = %d: at most landing_blocks = %d" $draining $landing) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Each range is a name, its first port and how many. */}}
{{- define "tandem.checkPorts" -}}
{{- $part := .part -}}
{{- $takers := dict -}}
{{- range .ranges -}}
{{- $name := first . -}}
{{- $port := index . 1 | int -}}
{{- $count := last . | int -}}
{{- if gt (add $port $count | int) 65536 -}}
{{- fail (printf "%s.ports.%s = %d: %d ports from there end after 65535" $part $name $port $count) -}}
{{- end -}}
{{- range until $count -}}
{{- $number := add $port . | toString -}}
{{- if hasKey $takers $number -}}
{{- fail (printf "%s.ports.%s = %d: %d ports from there reach %s, which is one of %s.ports.%s" $part $name $port $count $number $part (index $takers $number)) -}}
{{- end -}}
{{- $_ := set $takers $number $name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkEnvironment" -}}
{{- $part := .part -}}
{{- $taken := .taken -}}
{{- range .entries -}}
{{- if has .name $taken -}}
{{- fail (printf "%s.extraEnv: %s is set twice, perhaps by rdma" $part .name) -}}
{{- end -}}
{{- $taken = append $taken .name -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkResources" -}}
{{- $part := .part -}}
{{- $limits := default dict .resources.limits -}}
{{- range $name, $asked := default dict .resources.requests -}}
{{- if hasKey $limits $name -}}
{{- if gt (include "tandem.quantity" $asked | float64) (include "tandem.quantity" (index $limits $name) | float64) -}}
{{- fail (printf "%s.resources.requests.%s = %v: more than its limit %v" $part $name $asked (index $limits $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A quantity of Kubernetes as a plain number. */}}
{{- define "tandem.quantity" -}}
{{- $text := include "tandem.plain" . -}}
{{- $number := regexFind "^[0-9.]+" $text | float64 -}}
{{- $unit := trimPrefix (regexFind "^[0-9.]+" $text) $text -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf $number (index $units $unit) -}}
{{- end -}}
