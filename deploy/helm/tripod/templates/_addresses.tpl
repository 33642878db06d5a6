{{/* The addresses in kube-proxy's configuration, and what follows from them. */}}

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

{{/* Sets where probes ask, as the configuration that the chart creates says. Returns nothing. */}}
{{- define "tripod.probed" -}}
{{- $healthz := dict "text" (default "" .root.Values.config.kubeProxy.healthzBindAddress) "port" 10256 -}}
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
{{- end -}}

{{/* Returns a text if metrics are served over TLS. */}}
{{- define "tripod.secure" -}}
{{- $monitoring := .Values.monitoring -}}
{{- if or .Values.secureMetrics.enabled (and $monitoring.enabled (eq $monitoring.scheme "https")) -}}
true
{{- end -}}
{{- end -}}

{{/* Returns kube-proxy's configuration, as far as it is known: the one that the chart creates, or
     the one in the cluster, which Helm reads when it installs and does not when it renders. Empty:
     it is not known. */}}
{{- define "tripod.configuration" -}}
{{- if .Values.config.create -}}
{{- merge (dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1") .Values.config.kubeProxy | toYaml -}}
{{- else -}}
{{- $map := lookup "v1" "ConfigMap" .Release.Namespace (include "tripod.configMap" .) -}}
{{- dig "data" "config.conf" "" $map -}}
{{- end -}}
{{- end -}}

{{/* Returns host and port of metrics without TLS: 127.0.0.1 and 10249, unless configured. */}}
{{- define "tripod.metrics" -}}
{{- $configuration := include "tripod.configuration" . | fromYaml -}}
{{- $text := default "127.0.0.1" $configuration.metricsBindAddress -}}
{{- include "tripod.address" (dict "text" $text "port" 10249) -}}
{{- end -}}

{{/* Returns the name of the ConfigMap with the configuration. */}}
{{- define "tripod.configMap" -}}
{{- default "kube-proxy" .Values.config.existingConfigMap -}}
{{- end -}}
