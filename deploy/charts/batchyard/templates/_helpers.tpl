{{- define "batchyard.name" -}}
{{ default .Release.Name .Values.name }}
{{- end }}

{{- define "batchyard.selector" -}}
app.kubernetes.io/name: batchyard
app.kubernetes.io/instance: {{ include "batchyard.name" . }}
{{- end }}

{{- define "batchyard.labels" -}}
{{ include "batchyard.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "batchyard.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end }}

{{- /* "yes" where the API server asks about objects, and any of the controllers has something to say. */ -}}
{{- define "batchyard.webhooks" -}}
{{- if and .Values.webhooks.enabled (or (has "admission" .Values.controllers) (has "pods" .Values.controllers) (has "jobset" .Values.controllers)) -}}yes{{- end -}}
{{- end }}

{{- define "batchyard.certificates" -}}
{{ include "batchyard.name" . }}-webhook-certificates
{{- end }}

{{- /* The CustomResourceDefinitions of the controllers, as a list of JSON. */ -}}
{{- define "batchyard.definitions" -}}
{{- $found := list -}}
{{- range $each := .Files.Get "files/definitions.json" | fromJsonArray -}}
{{- $wanted := false -}}
{{- range $group := $each.groups -}}
{{- if has $group $.Values.controllers -}}{{- $wanted = true -}}{{- end -}}
{{- end -}}
{{- if $wanted -}}{{- $found = append $found $each.definition -}}{{- end -}}
{{- end -}}
{{ toJson $found }}
{{- end }}
