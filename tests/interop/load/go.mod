module binlogd/interop/load

go 1.24

require (
	github.com/pingcap/tipb v0.0.0-20201209065231-aa39b1b86217
	golang.org/x/sys v0.33.0
	google.golang.org/grpc v1.75.1
)

require (
	github.com/golang/protobuf v1.5.4 // indirect
	golang.org/x/net v0.41.0 // indirect
	golang.org/x/text v0.26.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250707201910-8d1bb00bc6a7 // indirect
	google.golang.org/protobuf v1.36.6 // indirect
)
