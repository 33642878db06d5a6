{{/* The objects are those of kustomize/ and monitoring/, read here as they are, so that
     both ways install the same; values change them. */}}

{{/* Returns the object in a file, in the namespace of the release. */}}
{{- define "tripod.object" -}}
{{- $object := .root.Files.Get (printf "files/%s" .file) | fromYaml -}}
{{- $_ := set $object.metadata "namespace" .root.Release.Namespace -}}
{{- toYaml $object -}}
{{- end -}}

{{/* Returns the objects in a file, in the namespace of the release, and so are the
     subjects that they bind. */}}
{{- define "tripod.objects" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- range splitList "\n---\n" (.root.Files.Get (printf "files/%s" .file)) -}}
{{- $object := fromYaml . -}}
{{- if hasKey $object.metadata "namespace" -}}
{{- $_ := set $object.metadata "namespace" $namespace -}}
{{- end -}}
{{- range $object.subjects -}}
{{- $_ := set . "namespace" $namespace -}}
{{- end }}
---
{{ toYaml $object }}
{{ end -}}
{{- end -}}

{{/* Sets how far the programs of a pod confine themselves, where their commands say so. Returns
     nothing. */}}
{{- define "tripod.confined" -}}
{{- $flag := printf "--confine=%s" (default "files" .root.Values.confine) -}}
{{- range $container := .pod.containers -}}
{{- $command := list -}}
{{- range $word := $container.command -}}
{{- $command = append $command (ternary $flag $word (hasPrefix "--confine=" $word)) -}}
{{- end -}}
{{- $_ := set $container "command" $command -}}
{{- end -}}
{{- end -}}

{{/* Returns host and port of an address as kube-proxy's configuration has it: an IP address with
     or without a port. The host is empty if it stands for all addresses. */}}
{{- define "tripod.address" -}}
{{- $host := .text -}}
{{- $port := .port -}}
{{- if regexMatch "^(\\[.*\\]|[^:]*):[0-9]+$" .text -}}
{{- $port = regexFind "[0-9]+$" .text | int -}}
{{- $host = regexReplaceAll "^\\[?(.*?)\\]?:[0-9]+$" .text "${1}" -}}
{{- end -}}
{{- if regexMatch "^[0.:]*$" $host -}}
{{- $host = "" -}}
{{- end -}}
{{- dict "host" $host "port" $port | toYaml -}}
{{- end -}}

{{/* Sets where probes ask, as the configuration that the chart makes says, and refuses addresses
     that do not go together. Returns nothing. */}}
{{- define "tripod.asked" -}}
{{- $configured := .root.Values.config.kubeProxy -}}
{{- $healthz := dict "text" (default "" $configured.healthzBindAddress) "port" 10256 -}}
{{- $healthz = include "tripod.address" $healthz | fromYaml -}}
{{- $container := index .pod.containers 0 -}}
{{- range $probe := list $container.livenessProbe $container.readinessProbe -}}
{{- with $probe.httpGet -}}
{{- $_ := set . "port" (int $healthz.port) -}}
{{- with $healthz.host -}}
{{- $_ := set $probe.httpGet "host" . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $metrics := default "127.0.0.1" $configured.metricsBindAddress -}}
{{- $address := include "tripod.address" (dict "text" $metrics "port" 10249) | fromYaml -}}
{{- if and .root.Values.secureMetrics.enabled (not $address.host) (eq (int $address.port) 10249) -}}
{{- fail (printf "config.kubeProxy.metricsBindAddress %s includes port 10249 of the node's address, where secureMetrics.enabled serves over TLS: leave it at 127.0.0.1:10249, or name another port" $metrics) -}}
{{- end -}}
{{- end -}}

{{/* Sets in the spec of a pod on which nodes it runs, and who may pull its image. Returns
     nothing. */}}
{{- define "tripod.placed" -}}
{{- $values := .root.Values -}}
{{- $_ := set .pod "nodeSelector" (merge .pod.nodeSelector $values.nodeSelector) -}}
{{- $_ = set .pod "tolerations" $values.tolerations -}}
{{- range $field := list "affinity" "imagePullSecrets" -}}
{{- with index $values $field -}}
{{- $_ = set $.pod $field . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Returns the object in a file, as tripod.object does, with the labels by which
     Prometheus selects it. */}}
{{- define "tripod.monitored" -}}
{{- $object := include "tripod.object" . | fromYaml -}}
{{- with .root.Values.monitoring.labels -}}
{{- $_ := set $object.metadata "labels" (merge (dict) . (default dict $object.metadata.labels)) -}}
{{- end -}}
{{- toYaml $object -}}
{{- end -}}
