{{/* What values change in the pods of both DaemonSets. */}}

{{/* Returns the name of the image. */}}
{{- define "tripod.image" -}}
{{- $image := .Values.image -}}
{{- $repository := required "image.repository is needed: the name of the image of Tripod that your nodes can pull, without tag, such as registry.example.com/tripod" $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion $image.tag | toString) -}}
{{- end -}}
{{- end -}}

{{/* Sets the image of each container, and how far the programs that stay confine themselves,
     where their commands say so. Returns nothing. */}}
{{- define "tripod.contained" -}}
{{- $image := include "tripod.image" .root -}}
{{- $flag := printf "--confine=%s" (default "files" .root.Values.confine) -}}
{{- range $container := concat (default list .pod.initContainers) .pod.containers -}}
{{- $_ := set $container "image" $image -}}
{{- $_ = set $container "imagePullPolicy" $.root.Values.image.pullPolicy -}}
{{- $command := list -}}
{{- range $word := $container.command -}}
{{- $command = append $command (ternary $flag $word (hasPrefix "--confine=" $word)) -}}
{{- end -}}
{{- $_ = set $container "command" $command -}}
{{- end -}}
{{- end -}}

{{/* Sets in the template of a pod its labels and annotations, on which nodes it runs, and who may
     pull its image. Returns nothing. */}}
{{- define "tripod.placed" -}}
{{- $values := .root.Values -}}
{{- $metadata := .template.metadata -}}
{{- $labels := include "tripod.selectedLabels" . | fromYaml -}}
{{- $_ := set $metadata "labels" (merge $metadata.labels $labels $values.podLabels) -}}
{{- with $values.podAnnotations -}}
{{- $_ = set $metadata "annotations" . -}}
{{- end -}}
{{- $pod := .template.spec -}}
{{- $_ = set $pod "nodeSelector" (merge $pod.nodeSelector $values.nodeSelector) -}}
{{- $_ = set $pod "tolerations" $values.tolerations -}}
{{- range $field := list "affinity" "imagePullSecrets" -}}
{{- with index $values $field -}}
{{- $_ = set $pod $field . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Changes an object as a JSON patch (RFC 6902) in a file does. Each step sets a field, or adds a
     value to the end of a list, of the first container, of the pod or of the DaemonSet. Returns
     nothing. */}}
{{- define "tripod.patched" -}}
{{- $pod := .object.spec.template.spec -}}
{{- range .root.Files.Get (printf "files/%s" .file) | fromYamlArray -}}
{{- $in := ternary $pod $.object.spec (hasPrefix "/spec/template/spec/" .path) -}}
{{- $in = ternary (index $pod.containers 0) $in (contains "/containers/0/" .path) -}}
{{- if eq (base .path) "-" -}}
{{- $list := base (dir .path) -}}
{{- $_ := set $in $list (append (index $in $list) .value) -}}
{{- else -}}
{{- $_ := set $in (base .path) .value -}}
{{- end -}}
{{- end -}}
{{- end -}}
