// Deployment reads what stands below deploy/ as its own tools read it.
//
//	deployment render CHART [VALUES]   the chart's documents, as `helm template binlogd CHART` writes them, after Helm's lint
//	deployment kubernetes FILE         each document into the type that an API server decodes it into; unknown fields fail
//	deployment compose FILE            the project that Compose makes of it
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func render(folder string, values map[string]any) error {
	for _, message := range lint.All(folder, values, "default", true).Messages {
		if message.Severity >= support.WarningSev {
			return message
		}
	}
	chart, err := loader.Load(folder)
	if err != nil {
		return err
	}
	release := chartutil.ReleaseOptions{Name: "binlogd", Namespace: "default", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValuesWithSchemaValidation(chart, values, release, chartutil.DefaultCapabilities, false)
	if err != nil {
		return err
	}
	made, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return err
	}
	var names []string
	for name, text := range made {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(text) != "" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Printf("---\n%s\n", strings.TrimSpace(made[name]))
	}
	return nil
}

func kubernetes(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for documents := yaml.NewYAMLReader(bufio.NewReader(file)); ; {
		document, err := documents.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if made, err := yaml.ToJSON(document); err == nil && string(made) == "null" {
			continue // comments alone
		}
		_, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		fmt.Println(kind.Kind)
	}
}

func compose(path string) error {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithProfiles([]string{"*"}))
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(project.ServiceNames(), "\n"))
	return nil
}

func run(words []string) error {
	if len(words) < 2 {
		return fmt.Errorf("render CHART [VALUES], kubernetes FILE or compose FILE")
	}
	switch words[0] {
	case "render":
		values := chartutil.Values{}
		if len(words) > 2 {
			read, err := chartutil.ReadValuesFile(words[2])
			if err != nil {
				return err
			}
			values = read
		}
		return render(words[1], values)
	case "kubernetes":
		return kubernetes(words[1])
	case "compose":
		return compose(words[1])
	}
	return fmt.Errorf("%s: unknown", words[0])
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
