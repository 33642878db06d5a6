{{/* The objects are those of kustomize/ and monitoring/, read here as they are, so that
     both ways install the same; values change them. */}}

{{/* Returns the object in a file, in the namespace of the release. */}}
{{- define "tripod.object" -}}
{{- $object := .root.Files.Get .file | fromYaml -}}
{{- $_ := set $object.metadata "namespace" .root.Release.Namespace -}}
{{- toYaml $object -}}
{{- end -}}

{{/* Returns the objects in a file, in the namespace of the release, and so are the
     subjects that they bind. */}}
{{- define "tripod.objects" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- range splitList "\n---\n" (.root.Files.Get .file) -}}
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
