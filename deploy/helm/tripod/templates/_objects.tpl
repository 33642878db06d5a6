{{/* The objects are those of kustomize/ and monitoring/, read here as they are, so that
     both ways install the same; values change them. */}}

{{/* Returns the object in a file, in the namespace of the release. */}}
{{- define "tripod.object" -}}
{{- $object := .root.Files.Get .file | fromYaml -}}
{{- $_ := set $object.metadata "namespace" .root.Release.Namespace -}}
{{- toYaml $object -}}
{{- end -}}
