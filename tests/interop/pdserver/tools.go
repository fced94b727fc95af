//go:build tools

// Package tools pins a PD: `go build -tags without_dashboard github.com/tikv/pd/cmd/pd-server`.
package tools

import _ "github.com/tikv/pd/cmd/pd-server"
