// The Pump client of TiDB and the registry of the tools, as TiDB, Pump, Drainer and binlogctl are
// built with them, against a binlogd that is their PD and their Pump.
//
//	pumps HOST:PORT [SOCKET]        everything once
//	pumps HOST:PORT for SECONDS     writes for so long, and says how many transactions it wrote
//
// With TLS=DIRECTORY in the environment, with the certificates there: ca.pem, tidb.pem, tidb.key.
// Each line says "ok" or "FAIL" and what was asked; the exit code is 1 when something failed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pingcap/tidb-tools/pkg/etcd"
	"github.com/pingcap/tidb-tools/pkg/utils"
	"github.com/pingcap/tidb-tools/tidb-binlog/node"
	client "github.com/pingcap/tidb-tools/tidb-binlog/pump_client"
	binlog "github.com/pingcap/tipb/go-binlog"
	pd "github.com/tikv/pd/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"
)

var failed bool

var security = certificates()

func certificates() pd.SecurityOption {
	directory := os.Getenv("TLS")
	if directory == "" {
		return pd.SecurityOption{}
	}
	return pd.SecurityOption{
		CAPath:   directory + "/ca.pem",
		CertPath: directory + "/tidb.pem",
		KeyPath:  directory + "/tidb.key",
	}
}

func check(name string, f func() error) {
	if err := f(); err != nil {
		failed = true
		fmt.Printf("FAIL %s: %v\n", name, err)
		return
	}
	fmt.Printf("ok   %s\n", name)
}

// One transaction: its rows before the commit, its outcome after.
func write(pumps *client.PumpsClient, start int64) error {
	value := binlog.PrewriteValue{SchemaVersion: 1}
	rows, err := value.Marshal()
	if err != nil {
		return err
	}
	prewrite := &binlog.Binlog{Tp: binlog.BinlogType_Prewrite, StartTs: start, PrewriteKey: []byte("k"), PrewriteValue: rows}
	if err := pumps.WriteBinlog(prewrite); err != nil {
		return err
	}
	return pumps.WriteBinlog(&binlog.Binlog{Tp: binlog.BinlogType_Commit, StartTs: start, CommitTs: start + 1, PrewriteKey: []byte("k")})
}

// Several writers who never rest, as the sessions of a TiDB: no write may fail.
func writeFor(url string, times pd.Client, duration time.Duration) {
	pumps, err := client.NewPumpsClient(url, client.Range, 15*time.Second, security)
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
	var group sync.WaitGroup
	var written, last, lost int64
	until := time.Now().Add(duration)
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(until) {
				commit, err := transact(pumps, times)
				if err != nil {
					fmt.Println("FAIL", err)
					atomic.AddInt64(&lost, 1)
					return
				}
				atomic.AddInt64(&written, 1)
				for {
					seen := atomic.LoadInt64(&last)
					if commit <= seen || atomic.CompareAndSwapInt64(&last, seen, commit) {
						break
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	group.Wait()
	pumps.Close()
	fmt.Printf("wrote %d up to %d\n", written, last)
	if lost > 0 {
		os.Exit(1)
	}
}

func transact(pumps *client.PumpsClient, times pd.Client) (int64, error) {
	start, err := timestamp(times)
	if err != nil {
		return 0, err
	}
	value := binlog.PrewriteValue{SchemaVersion: 1}
	rows, err := value.Marshal()
	if err != nil {
		return 0, err
	}
	if err := pumps.WriteBinlog(&binlog.Binlog{Tp: binlog.BinlogType_Prewrite, StartTs: start, PrewriteKey: []byte("k"), PrewriteValue: rows}); err != nil {
		return 0, err
	}
	commit, err := timestamp(times)
	if err != nil {
		return 0, err
	}
	return commit, pumps.WriteBinlog(&binlog.Binlog{Tp: binlog.BinlogType_Commit, StartTs: start, CommitTs: commit, PrewriteKey: []byte("k")})
}

func dial(ctx context.Context, place string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	tlsConfig, err := utils.ToTLSConfig(security.CAPath, security.CertPath, security.KeyPath)
	if err != nil {
		return nil, err
	}
	if tlsConfig == nil {
		return grpc.DialContext(ctx, place, append(options, grpc.WithInsecure())...)
	}
	return grpc.DialContext(ctx, place, append(options, grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig)))...)
}

// As a Go Drainer: compressed, without a limit, from the last that it has.
func pull(ctx context.Context, place string, clusterID uint64, atLeast int) error {
	conn, err := dial(ctx, place, grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.UseCompressor(gzip.Name)))
	if err != nil {
		return err
	}
	defer conn.Close()
	var last int64
	rows, fakes := 0, 0
	for rows < atLeast || fakes < 2 {
		stream, err := binlog.NewPumpClient(conn).PullBinlogs(ctx, &binlog.PullBinlogReq{ClusterID: clusterID, StartFrom: binlog.Pos{Offset: last}})
		if err != nil {
			return err
		}
		for i := 0; i < 15 && (rows < atLeast || fakes < 2); i++ { // and then from there in another stream
			answer, err := stream.Recv()
			if err != nil {
				return err
			}
			var found binlog.Binlog
			if err := found.Unmarshal(answer.Entity.Payload); err != nil {
				return err
			}
			if found.CommitTs <= last {
				return fmt.Errorf("%d after %d", found.CommitTs, last)
			}
			last = found.CommitTs
			if found.StartTs == found.CommitTs {
				fakes++
			} else if rows++; found.Tp != binlog.BinlogType_Commit || len(found.PrewriteValue) == 0 {
				return fmt.Errorf("not joined: %v", &found)
			}
		}
		_ = stream.CloseSend()
	}
	return nil
}

// As TiDB asks: again for a while, as the leader of PD may have moved.
func timestamp(times pd.Client) (int64, error) {
	for until := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		physical, logical, err := times.GetTS(context.Background())
		if err == nil || time.Now().After(until) {
			return physical<<18 + logical, err
		}
	}
}

func main() {
	place := os.Args[1]
	url := "http://" + place
	if security.CAPath != "" {
		url = "https://" + place
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	times, err := pd.NewClient([]string{url}, security)
	if err != nil {
		fmt.Println("FAIL pd:", err)
		os.Exit(1)
	}
	if len(os.Args) > 3 && os.Args[2] == "for" {
		seconds, err := strconv.Atoi(os.Args[3])
		if err != nil {
			panic(err)
		}
		writeFor(url, times, time.Duration(seconds)*time.Second)
		return
	}
	now := func() int64 {
		physical, logical, err := times.GetTS(ctx)
		if err != nil {
			panic(err)
		}
		return physical<<18 + logical
	}

	for _, strategy := range []string{client.Range, client.Hash} {
		check("the Pump client finds its Pump in PD and writes, strategy "+strategy, func() error {
			pumps, err := client.NewPumpsClient(url, strategy, 15*time.Second, security)
			if err != nil {
				return err
			}
			defer pumps.Close()
			if len(pumps.Pumps.AvaliablePumps) != 1 {
				return fmt.Errorf("%d Pumps are available", len(pumps.Pumps.AvaliablePumps))
			}
			for i := 0; i < 20; i++ {
				if err := write(pumps, now()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if len(os.Args) > 2 {
		check("the Pump client writes through the unix socket", func() error {
			pumps, err := client.NewLocalPumpsClient(url, os.Args[2], 15*time.Second, security)
			if err != nil {
				return err
			}
			defer pumps.Close()
			for i := 0; i < 20; i++ {
				if err := write(pumps, now()); err != nil {
					return err
				}
			}
			return nil
		})
	}

	check("a Drainer pulls all of it, compressed, in order, and hears more while nobody writes", func() error {
		return pull(ctx, place, times.GetClusterID(ctx), 40)
	})

	check("a Pump that starts tells the Drainer so", func() error {
		conn, err := dial(ctx, place, grpc.WithBlock())
		if err != nil {
			return err
		}
		defer conn.Close()
		// both messages are empty, as that one is
		return conn.Invoke(ctx, "/binlog.Cistern/Notify", &binlog.WriteBinlogResp{}, &binlog.WriteBinlogResp{})
	})

	tlsConfig, err := utils.ToTLSConfig(security.CAPath, security.CertPath, security.KeyPath)
	if err != nil {
		fmt.Println("FAIL tls:", err)
		os.Exit(1)
	}
	cli, err := etcd.NewClientFromCfg([]string{url}, 5*time.Second, node.DefaultRootPath, tlsConfig)
	if err != nil {
		fmt.Println("FAIL etcd:", err)
		os.Exit(1)
	}
	registry := node.NewEtcdRegistry(cli, 5*time.Second)
	list := func(kind string) ([]*node.Status, error) {
		found, _, err := registry.Nodes(ctx, node.NodePrefix[kind])
		return found, err
	}
	for kind, id := range map[string]string{node.PumpNode: "pump0", node.DrainerNode: "pump0-drainer"} {
		check("the registry lists the "+kind+" and nothing is lost of its entry", func() error {
			found, err := list(kind)
			if err != nil {
				return err
			}
			if len(found) != 1 || found[0].NodeID != id || found[0].Addr != place || found[0].State != node.Online {
				return fmt.Errorf("%v", found)
			}
			age := time.Since(time.UnixMilli(found[0].UpdateTS >> 18))
			if age > time.Minute || age < -time.Minute {
				return fmt.Errorf("updateTS is %v old: %v", age, found[0])
			}
			raw, _, err := cli.Get(ctx, node.NodePrefix[kind]+"/"+id)
			if err != nil {
				return err
			}
			var again node.Status
			if err := json.Unmarshal(raw, &again); err != nil {
				return err
			}
			text, err := json.Marshal(again)
			if err != nil {
				return err
			}
			if string(text) != string(raw) {
				return fmt.Errorf("here %s, as Go writes it %s", raw, text)
			}
			return nil
		})
	}
	check("the Pump's maxCommitTS follows what was written", func() error {
		for {
			found, err := list(node.PumpNode)
			if err != nil {
				return err
			}
			if len(found) == 1 && found[0].MaxCommitTS > 0 {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	check("a node of the original registers, changes and is watched", func() error {
		_, revision, err := registry.Nodes(ctx, node.NodePrefix[node.DrainerNode])
		if err != nil {
			return err
		}
		told := registry.WatchNode(ctx, node.DefaultRootPath+"/"+node.NodePrefix[node.DrainerNode], revision+1)
		own := &node.Status{NodeID: "go-drainer", Addr: "127.0.0.1:1", State: node.Online, MaxCommitTS: 1 << 60}
		for _, state := range []string{node.Online, node.Paused, node.Offline} {
			own.State = state
			if err := registry.UpdateNode(ctx, node.NodePrefix[node.DrainerNode], own); err != nil {
				return err
			}
		}
		for seen := 0; seen < 3; {
			answer, ok := <-told
			if !ok || answer.Err() != nil {
				return fmt.Errorf("watch: %v", answer.Err())
			}
			for _, event := range answer.Events {
				if string(event.Kv.Key) == node.DefaultRootPath+"/drainers/go-drainer" {
					seen++
				}
			}
		}
		found, _, err := registry.Node(ctx, node.NodePrefix[node.DrainerNode], "go-drainer")
		if err != nil || *found != *own {
			return fmt.Errorf("%v %v", found, err)
		}
		return nil
	})
	if failed {
		os.Exit(1)
	}
}
