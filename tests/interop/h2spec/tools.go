//go:build tools

// Package tools pins h2spec, which judges a server by the standards of HTTP/2 and HPACK.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
