{{/* Refuses values that do not go together, with the remedy. Returns nothing. */}}
{{- define "tripod.checked" -}}
{{- include "tripod.checkedConfiguration" . -}}
{{- include "tripod.checkedMetrics" . -}}
{{- $surges := not (has (toString (dig "rollingUpdate" "maxSurge" 0 .Values.updateStrategy)) (list "0" "0%")) -}}
{{- if and $surges (not .Values.surge.enabled) -}}
{{- fail "updateStrategy with maxSurge needs surge.enabled=true: otherwise the old pod of a node answers the probes of the new one" -}}
{{- end -}}
{{- end -}}

{{/* The same of the ConfigMap with the configuration. */}}
{{- define "tripod.checkedConfiguration" -}}
{{- $namespace := .Release.Namespace -}}
{{- $config := .Values.config -}}
{{- if $config.create -}}
{{- if $config.existingConfigMap -}}
{{- fail "config.create creates the ConfigMap kube-proxy, and config.existingConfigMap names one that exists: set only one of them" -}}
{{- end -}}
{{- if not $config.server -}}
{{- fail "config.server is needed with config.create: the address of the API server itself, https://ADDRESS:6443" -}}
{{- end -}}
{{- if not $config.kubeProxy.clusterCIDR -}}
{{- fail "config.kubeProxy.clusterCIDR is needed with config.create: the network of all pods" -}}
{{- end -}}
{{- $running := lookup "apps/v1" "DaemonSet" $namespace "kube-proxy" -}}
{{- if and $running (ne (dig "metadata" "annotations" "meta.helm.sh/release-name" "" $running) .Release.Name) -}}
{{- fail (printf "config.create is for a cluster without kube-proxy, but namespace %s has a DaemonSet kube-proxy: set config.create=false to replace it with its own ConfigMap, or delete it first" $namespace) -}}
{{- end -}}
{{- else if and (ne $namespace "kube-system") (not $config.existingConfigMap) -}}
{{- fail (printf "namespace %s has no configuration: install with --namespace kube-system to use the ConfigMap kube-proxy of kubeadm, or set config.create=true to create one, or config.existingConfigMap to the name of one in namespace %s" $namespace $namespace) -}}
{{- end -}}
{{- end -}}

{{/* The same of the addresses of metrics. */}}
{{- define "tripod.checkedMetrics" -}}
{{- $configuration := include "tripod.configuration" . | fromYaml -}}
{{- if $configuration -}}
{{- $text := default "127.0.0.1" $configuration.metricsBindAddress -}}
{{- $address := include "tripod.metrics" . | fromYaml -}}
{{- $where := ternary "config.kubeProxy.metricsBindAddress" (printf "ConfigMap %s/%s: metricsBindAddress" .Release.Namespace (include "tripod.configMap" .)) .Values.config.create -}}
{{- $isLoopback := or (hasPrefix "127." $address.host) (eq $address.host "::1") -}}
{{- if include "tripod.secure" . -}}
{{- if and (not $isLoopback) (eq (int $address.port) 10249) -}}
{{- fail (printf "%s %s includes port 10249 of the node's address, where metrics are served over TLS: leave it at 127.0.0.1:10249, or name another port; to have Prometheus read there without TLS, set monitoring.scheme=http and secureMetrics.enabled=false" $where $text) -}}
{{- end -}}
{{- else if and .Values.monitoring.enabled $isLoopback -}}
{{- fail (printf "%s %s can be reached only from the node: with monitoring.scheme=http, name an address of the node, such as 0.0.0.0:10249; or leave monitoring.scheme at https" $where $text) -}}
{{- end -}}
{{- end -}}
{{- end -}}
