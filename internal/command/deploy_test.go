package command

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"go.yaml.in/yaml/v3"
)

const deployDir = "../../deploy"

// The files of deploy set no variable that serve does not read.
func TestDeployVariables(t *testing.T) {
	t.Parallel()
	known := []string{configVariable}
	for _, source := range serveSources {
		known = append(known, source.variable)
	}
	variable := regexp.MustCompile(`\bTAPE(STORE)?_[A-Z_]+\b`)
	found := 0
	err := filepath.WalkDir(deployDir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range variable.FindAllString(string(text), -1) {
			found++
			if name != "TAPESTORE_IMAGE" && name != "TAPESTORE_PORT" && name != "TAPE_" && !slices.Contains(known, name) {
				t.Errorf("%s sets %s, which serve does not read", path, name)
			}
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%d variables, %v", found, err)
	}
}

// The image and the unit set no variable of serve, which would win over tape.yaml: a server whose file
// names another store would write into a file of SQLite. Their working directory is where the default
// store belongs.
func TestDeployLeavesSettingsToTheFile(t *testing.T) {
	t.Parallel()
	for name, directory := range map[string]string{
		"Dockerfile": "\nWORKDIR /data\n", "systemd/tapestore.service": "\nWorkingDirectory=/var/lib/tapestore\n",
	} {
		text, err := os.ReadFile(filepath.Join(deployDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if set := regexp.MustCompile(`(?m)^(ENV|Environment=).*TAPE.*$`).Find(text); set != nil {
			t.Errorf("%s sets a variable: %s", name, set)
		}
		if !strings.Contains(string(text), directory) || defaultStore != "sqlite:tape.db" {
			t.Errorf("%s: the default store %s is not in the directory of the state", name, defaultStore)
		}
	}
}

// compose.yaml publishes a server without TLS on loopback only, and every service is confined.
func TestCompose(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(deployDir, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Secrets  map[string]any
		Services map[string]struct {
			ReadOnly    bool     `yaml:"read_only"`
			CapDrop     []string `yaml:"cap_drop"`
			Ports       []string
			Environment map[string]string
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil || len(file.Services) != 2 {
		t.Fatalf("got %d services, %v", len(file.Services), err)
	}
	if len(file.Secrets) > 0 {
		t.Errorf("secrets %v are mounted as single files, which hide a replacement by rename", file.Secrets)
	}
	for name, s := range file.Services {
		loopback := !slices.ContainsFunc(s.Ports, func(p string) bool { return !strings.HasPrefix(p, "127.0.0.1:") })
		secure := s.Environment["TAPE_TLS_CERT"] != "" && s.Environment["TAPE_PRINCIPALS"] != "" && s.Environment["TAPE_INSECURE"] == ""
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.Ports) == 0 || !loopback && !secure {
			t.Errorf("service %s: %+v", name, s)
		}
	}
}

// chart renders the Helm chart with values over its own, as far as the functions go that it uses.
// It returns the objects by kind.
func chart(t *testing.T, values string) (map[string]map[string]any, error) {
	t.Helper()
	dir := filepath.Join(deployDir, "helm", "tapestore")
	read := func(name string, into any) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var about struct {
		Name, Version string
		AppVersion    string `yaml:"appVersion"`
	}
	all := map[string]any{}
	read("Chart.yaml", &about)
	read("values.yaml", &all)
	over := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &over); err != nil {
		t.Fatal(err)
	}
	merge(all, over)
	root := template.New("chart").Option("missingkey=error")
	indent := func(n int, s string) string {
		return "\n" + strings.Repeat(" ", n) + strings.ReplaceAll(s, "\n", "\n"+strings.Repeat(" ", n))
	}
	root.Funcs(template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := root.ExecuteTemplate(&b, name, data)
			return strings.TrimSpace(b.String()), err
		},
		"toYaml": func(v any) (string, error) {
			b, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(b), "\n"), err
		},
		"quote": func(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) },
		"default": func(d, v any) any {
			if v == nil || v == "" {
				return d
			}
			return v
		},
		"fail":       func(text string) (string, error) { return "", fmt.Errorf("%s", text) },
		"nindent":    indent,
		"contains":   func(part, s string) bool { return strings.Contains(s, part) },
		"regexMatch": regexp.MatchString,
		"trunc":      func(n int, s string) string { return s[:min(n, len(s))] },
		"trimSuffix": func(end, s string) string { return strings.TrimSuffix(s, end) },
		"dict": func(pairs ...any) map[string]any {
			m := map[string]any{}
			for i := 0; i < len(pairs); i += 2 {
				m[pairs[i].(string)] = pairs[i+1]
			}
			return m
		},
		"int": func(v any) (n int, err error) { _, err = fmt.Sscan(fmt.Sprint(v), &n); return n, err },
	})
	files, err := filepath.Glob(filepath.Join(dir, "templates", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("templates: %v, %v", files, err)
	}
	if _, err := root.ParseFiles(files...); err != nil {
		t.Fatal(err)
	}
	data := map[string]any{
		"Values": all, "Chart": map[string]any{"Name": about.Name, "Version": about.Version, "AppVersion": about.AppVersion},
		"Release": map[string]any{"Name": "r", "Namespace": "ns", "Service": "Helm"},
	}
	objects := map[string]map[string]any{}
	for _, file := range files {
		var b strings.Builder
		if strings.HasPrefix(filepath.Base(file), "_") {
			continue
		}
		if err := root.ExecuteTemplate(&b, filepath.Base(file), data); err != nil {
			return nil, err
		}
		if filepath.Ext(file) != ".yaml" {
			continue
		}
		for _, text := range strings.Split(b.String(), "\n---\n") {
			object := map[string]any{}
			if err := yaml.Unmarshal([]byte(text), &object); err != nil {
				t.Fatalf("%s: %v in\n%s", file, err, text)
			}
			if kind, ok := object["kind"].(string); ok {
				objects[kind] = object
			}
		}
	}
	return objects, nil
}

// A network policy admits nothing to the metrics, which have no authentication, unless metricsFrom
// names it.
func TestChartNetworkPolicy(t *testing.T) {
	t.Parallel()
	const grpc, agents, scraper = "ports:[map[port:grpc]]", "from:[map[podSelector:map[a:b]]]", "map[from:[map[podSelector:map[c:d]]] ports:[map[port:metrics]]]"
	for values, want := range map[string]string{
		"from: [{podSelector: {a: b}}]":                                       "[map[" + agents + " " + grpc + "]]",
		"metricsFrom: [{podSelector: {c: d}}]":                                "[map[" + grpc + "] " + scraper + "]",
		"from: [{podSelector: {a: b}}], metricsFrom: [{podSelector: {c: d}}]": "[map[" + agents + " " + grpc + "] " + scraper + "]",
	} {
		objects, err := chart(t, "{store: {url: postgres://h/d}, insecure: true, networkPolicy: {"+values+"}}")
		if err != nil {
			t.Fatal(err)
		}
		spec, _ := objects["NetworkPolicy"]["spec"].(map[string]any)
		if got := fmt.Sprint(spec["ingress"]); got != want {
			t.Errorf("%s: got %s, want %s", values, got, want)
		}
	}
}

// The settings of the chart for retention become those of serve.
func TestChartRetention(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]map[string]string{
		"pace: 7":   {"PACE": "7"},
		"tasks: 7d": {"TASKS": "7d", "PACE": "50"},
		"journals: 90d, feed: 30d, deadTasks: 365d, archive: /archive, archiveClaim: c, pace: 0": {
			"JOURNALS": "90d", "FEED": "30d", "DEAD_TASKS": "365d", "ARCHIVE": "/archive", "PACE": "0",
		},
	} {
		objects, err := chart(t, "{store: {url: postgres://h/d}, insecure: true, retention: {"+values+"}}")
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprint(objects["Deployment"])
		got := map[string]string{}
		for _, m := range regexp.MustCompile(`name:TAPE_RETAIN_(\w+) value:([^] ]*)\]`).FindAllStringSubmatch(text, -1) {
			got[m[1]] = m[2]
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", values, got, want)
		}
		claimed := strings.Contains(values, "archiveClaim")
		if strings.Contains(text, "mountPath:/archive") != claimed || strings.Contains(text, "persistentVolumeClaim:map[claimName:c]") != claimed {
			t.Errorf("%s: the volume of the archive: got %s", values, text)
		}
	}
}

// merge sets what over has in all, deeply.
func merge(all, over map[string]any) {
	for key, value := range over {
		below, ok := value.(map[string]any)
		if known, there := all[key].(map[string]any); ok && there {
			merge(known, below)
			continue
		}
		all[key] = value
	}
}

// The chart refuses settings with which the server would not start, and otherwise has the objects
// that they ask for.
func TestChart(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"":                             "store.url",
		"store: {url: postgres://h/d}": "tls.existingSecret",
		"{store: {url: postgres://h/d}, tls: {existingSecret: t}}":                                                                            "auth.existingSecret",
		"{store: {url: 'sqlite:/data/tape.db'}, insecure: true}":                                                                              "persistence.enabled",
		"{store: {url: /data/tape.db}, insecure: true}":                                                                                       "persistence.enabled",
		"{store: {url: tape.db}, insecure: true, replicas: 1}":                                                                                "persistence.enabled",
		"{store: {url: memory.db}, insecure: true, replicas: 1}":                                                                              "persistence.enabled",
		"{store: {existingSecret: s}, insecure: true}":                                                                                        "store.engine",
		"{store: {existingSecret: s, engine: oracle}, insecure: true}":                                                                        "store.engine",
		"{store: {existingSecret: s, engine: sqlite}, insecure: true}":                                                                        "persistence.enabled",
		"{store: {existingSecret: s, engine: memory}, insecure: true}":                                                                        "replicas=1",
		"{store: {url: postgres://h/d, engine: postgres}, insecure: true}":                                                                    "store.engine goes with store.existingSecret",
		"{store: {url: a.db}, insecure: true, strategy: Recreate, persistence: {enabled: true}, migrate: {enabled: true, existingSecret: m}}": "behind a server",
		"{store: {url: postgres://h/d}, insecure: true, strategy: Sudden}":                                                                    "RollingUpdate or Recreate",
		"{store: {url: postgres://h/d}, insecure: true, migrate: {enabled: true, existingSecret: m}}":                                         "strategy=Recreate or replicas=0",
		"{store: {url: postgres://h/d}, insecure: true, retention: {journals: 90d}}":                                                          "retention.archive",
		"{store: {url: postgres://h/d}, insecure: true, retention: {journals: 90, archive: none}}":                                            "retention.journals is a duration",
		"{store: {url: postgres://h/d}, insecure: true, retention: {journals: 90d, archive: /tmp}}":                                           "end with the pod",
		"{store: {url: postgres://h/d}, insecure: true, retention: {journals: 90d, archive: archive}}":                                        "end with the pod",
		"{store: {url: postgres://h/d}, insecure: true, retention: {tasks: 7d, pace: 0.5}}":                                                   "retention.pace",
		"{store: {url: postgres://h/d}, insecure: true, retention: {tasks: 7d, pace: 1000000.0e+3}}":                                          "retention.pace",
		"{store: {url: postgres://h/d}, insecure: true, retention: {tasks: 7d, archive: none}}":                                               "go with retention.journals",
		"{store: {url: postgres://h/d}, insecure: true, retention: {journals: 90d, archive: /archive}}":                                       "retention.archiveClaim",
		"{store: {url: postgres://h/d}, insecure: true, retention: {journals: 90d, archive: 'gs://b', archiveClaim: c}}":                      "is for retention.archive=/archive",
		"{store: {url: a, existingSecret: b}, insecure: true}":                                                                                "not both",
		"{store: {url: 'memory:'}, insecure: true}":                                                                                           "replicas=1",
		"{store: {url: postgres://h/d}, insecure: true, strategy: Recreate, migrate: {enabled: true}}":                                        "migrate.existingSecret",
	} {
		if _, err := chart(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error that says %q", values, err, want)
		}
	}
	const secure = "tls: {existingSecret: t, clientCA: ca.crt}, auth: {existingSecret: a}"
	for values, want := range map[string]string{
		"{store: {existingSecret: s, engine: postgres}, " + secure + ", strategy: Recreate, migrate: {enabled: true, existingSecret: m}, networkPolicy: {from: [{podSelector: {}}]}}": "Deployment Job NetworkPolicy PodDisruptionBudget Service ServiceAccount",
		"{store: {url: 'sqlite:/data/tape.db'}, insecure: true, persistence: {enabled: true}, serviceAccount: {create: false}}":                                                       "Service StatefulSet",
		"{store: {url: postgres://h/d}, insecure: true, replicas: 0, migrate: {enabled: true, existingSecret: m}}":                                                                    "Deployment Job Service ServiceAccount",
		"{store: {url: postgres://h/d}, insecure: true, replicas: 1, extraEnv: [{name: A, value: b}], settings: {TAPE_FENCE: x}, retention: null}":                                    "Deployment Service ServiceAccount",
	} {
		objects, err := chart(t, values)
		var kinds []string
		for kind := range objects {
			kinds = append(kinds, kind)
		}
		slices.Sort(kinds)
		if got := strings.Join(kinds, " "); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", values, got, err, want)
		}
		text := fmt.Sprint(objects)
		if secured := strings.Contains(values, secure); strings.Contains(text, "TAPE_TLS_CERT") != secured || strings.Contains(text, "TAPE_PRINCIPALS") != secured ||
			strings.Contains(text, "name:TAPE_INSECURE value:false") != secured {
			t.Errorf("%s: got %s", values, text)
		}
		if strings.Contains(values, "Recreate") != strings.Contains(text, "strategy:map[type:Recreate]") {
			t.Errorf("%s: the strategy: got %s", values, text)
		}
		if !strings.Contains(text, "readOnlyRootFilesystem:true") || !strings.Contains(text, "runAsNonRoot:true") {
			t.Errorf("%s: not confined: %s", values, text)
		}
	}
}
