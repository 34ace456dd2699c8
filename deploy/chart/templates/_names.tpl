{{- define "sluice.name" -}}
{{- printf "%s-sluice" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* By which scheme the driver answers, as [http] says; by expressions, since Helm reads no TOML. */ -}}
{{- define "sluice.scheme" -}}
{{- $section := regexFind "(?ms)^[ \\t]*\\[[ \\t]*http[ \\t]*\\].*?(^[ \\t]*\\[|\\z)" .Values.configuration -}}
{{- $section = printf "%s\n%s" $section (regexFind "(?ms)^[ \\t]*\\[[ \\t]*http[ \\t]*\\.[ \\t]*tls[ \\t]*\\].*?(^[ \\t]*\\[|\\z)" .Values.configuration) -}}
{{- $isTls := regexMatch "(?m)^[ \\t]*(tls[ \\t]*[.=]|\\[[ \\t]*http[ \\t]*\\.[ \\t]*tls[ \\t]*\\])" $section -}}
{{- if and $isTls (regexMatch "(?m)^[^#\\n]*\\bca[ \\t]*=" $section) -}}
{{- fail "[http] tls has ca, by which only who shows a certificate is answered, and the probes of Kubernetes show none: leave ca out, and say in networkPolicy.from who may ask" -}}
{{- end -}}
{{- ternary "HTTPS" "HTTP" $isTls -}}
{{- end }}
