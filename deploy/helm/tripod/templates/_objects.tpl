{{/* The objects are those of kustomize/ and monitoring/, of which files/ has copies, so that
     both ways install the same; values change them. */}}

{{/* Returns the documents in a file, as a list. */}}
{{- define "tripod.documents" -}}
{{- $documents := list -}}
{{- range splitList "\n---\n" (.root.Files.Get (printf "files/%s" .file)) -}}
{{- $documents = append $documents (fromYaml .) -}}
{{- end -}}
{{- toYaml $documents -}}
{{- end -}}

{{/* Returns the labels by which the objects of a release are found, and which never change. The
     component is the part of Tripod that an object belongs to. */}}
{{- define "tripod.selectedLabels" -}}
app.kubernetes.io/name: tripod
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Returns the labels of an object. */}}
{{- define "tripod.labels" -}}
{{ include "tripod.selectedLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Returns a text if the objects replace those of kubeadm. These are in kube-system, and so is
     the ConfigMap, which the chart then does not create. */}}
{{- define "tripod.adopts" -}}
{{- if and (eq .Release.Namespace "kube-system") (not .Values.config.create) -}}
true
{{- end -}}
{{- end -}}

{{/* Returns the only object in a file, as tripod.objects does. */}}
{{- define "tripod.object" -}}
{{- index (include "tripod.list" . | fromYamlArray) 0 | toYaml -}}
{{- end -}}

{{/* Returns the objects in a file as a list: in the namespace of the release, as are the subjects
     that they bind, with the labels of the component. `keep` has helm uninstall leave objects that
     replaced those of kubeadm, and without which Tripod would not go on. */}}
{{- define "tripod.list" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $labels := include "tripod.labels" . | fromYaml -}}
{{- $keep := and .keep (include "tripod.adopts" .root) -}}
{{- $objects := list -}}
{{- range $object := include "tripod.documents" . | fromYamlArray -}}
{{- $metadata := $object.metadata -}}
{{- if not (hasPrefix "Cluster" $object.kind) -}}
{{- $_ := set $metadata "namespace" $namespace -}}
{{- end -}}
{{- range $object.subjects -}}
{{- $_ := set . "namespace" $namespace -}}
{{- end -}}
{{- $_ := set $metadata "labels" (merge (default dict $metadata.labels) $labels) -}}
{{- if $keep -}}
{{- $_ := set $metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") (default dict $metadata.annotations)) -}}
{{- end -}}
{{- $objects = append $objects $object -}}
{{- end -}}
{{- toYaml $objects -}}
{{- end -}}

{{/* Returns the objects in a file as documents. */}}
{{- define "tripod.objects" -}}
{{- range include "tripod.list" . | fromYamlArray }}
---
{{ toYaml . }}
{{ end -}}
{{- end -}}

{{/* Returns the object in a file, as tripod.object does, with the labels by which
     Prometheus selects it. */}}
{{- define "tripod.monitored" -}}
{{- $object := include "tripod.object" . | fromYaml -}}
{{- $_ := set $object.metadata "labels" (merge (dict) .root.Values.monitoring.labels $object.metadata.labels) -}}
{{- toYaml $object -}}
{{- end -}}
