//go:build pd71

package main

import (
	"context"

	"github.com/tikv/client-go/v2/txnkv/txnsnapshot"
	pd "github.com/tikv/pd/client"
)

func leastTimestamp(ctx context.Context, cli pd.Client) (int64, int64, error) {
	return cli.GetTS(ctx)
}

func backward(snapshot *txnsnapshot.KVSnapshot, from []byte) (scanner, error) {
	return snapshot.IterReverse(from)
}
