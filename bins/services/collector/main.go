// An OpenTelemetry Collector of the parts that the services bootstrap configures, and no others.
package main

import (
	"bytes"
	"os"
	"syscall"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/opensearchexporter"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/bearertokenauthextension"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

func parts() (parts otelcol.Factories, err error) {
	parts.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return
	}
	parts.Processors, err = otelcol.MakeFactoryMap[processor.Factory](
		batchprocessor.NewFactory(), memorylimiterprocessor.NewFactory())
	if err != nil {
		return
	}
	parts.Extensions, err = otelcol.MakeFactoryMap[extension.Factory](bearertokenauthextension.NewFactory())
	if err != nil {
		return
	}
	parts.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](opensearchexporter.NewFactory())
	return
}

// The exporter reads the CA certificates of OpenSearch only when it starts. When the renewer writes others, the
// collector starts its parts again, as it does on this signal; what it holds is sent first.
func followAuthorities(file string) {
	known, _ := os.ReadFile(file)
	for range time.Tick(10 * time.Second) {
		current, err := os.ReadFile(file)
		if err == nil && !bytes.Equal(known, current) {
			known = current
			_ = syscall.Kill(os.Getpid(), syscall.SIGHUP)
		}
	}
}

func main() {
	if file := os.Getenv("TEC_CA"); file != "" {
		go followAuthorities(file)
	}
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Version: "0.138.0"},
		Factories: parts,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			DefaultScheme:     "file",
		}},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		os.Exit(1)
	}
}
