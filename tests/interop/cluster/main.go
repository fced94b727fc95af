// The clients of PD and TiKV that are linked into TiDB, Pump, Drainer and binlogctl of 7.x and 8.x,
// against a binlogd that stands in for PD: one argument, its host:port. Which versions they have is
// said by the file that `go build -modfile` is given,
// by a tag what they call things: -tags pd71. Each line says "ok" or "FAIL" and what was
// asked; the exit code is 1 when something failed. With TLS=DIRECTORY in the environment, with the
// certificates there: ca.pem, tidb.pem, tidb.key.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/tikv/client-go/v2/config"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
	"github.com/tikv/client-go/v2/txnkv"
	pd "github.com/tikv/pd/client"
)

// What a client of TiKV scans with.
type scanner interface {
	Valid() bool
	Key() []byte
	Next() error
}

var failed bool

func check(name string, f func() error) {
	began := time.Now()
	if err := f(); err != nil {
		failed = true
		fmt.Printf("FAIL %s: %v (%.2fs)\n", name, err, time.Since(began).Seconds())
		return
	}
	fmt.Printf("ok   %s (%.2fs)\n", name, time.Since(began).Seconds())
}

// What is not there is refused at once, with a word that says so.
func refused(err error) error {
	if err == nil {
		return fmt.Errorf("it was answered")
	}
	if !strings.Contains(err.Error(), "binlogd") {
		return fmt.Errorf("refused without a reason: %w", err)
	}
	return nil
}

func main() {
	place := os.Args[1]
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	askPd(ctx, place)
	askTikv(ctx, place)
	if failed {
		os.Exit(1)
	}
}

func askPd(ctx context.Context, place string) {
	directory := os.Getenv("TLS")
	url, security := "http://"+place, pd.SecurityOption{}
	if directory != "" {
		url = "https://" + place
		security = pd.SecurityOption{
			CAPath: directory + "/ca.pem", CertPath: directory + "/tidb.pem", KeyPath: directory + "/tidb.key",
		}
	}
	cli, err := pd.NewClientWithContext(ctx, []string{url}, security)
	if err != nil {
		check("pd", func() error { return err })
		return
	}
	defer cli.Close()
	check("whose cluster, and who leads", func() error {
		if cli.GetClusterID(ctx) == 0 {
			return fmt.Errorf("no cluster id")
		}
		members, err := cli.GetAllMembers(ctx)
		if err != nil || len(members) != 1 || members[0].ClientUrls[0] != url {
			return fmt.Errorf("%v %v", members, err)
		}
		return nil
	})
	check("timestamps rise, asked by many at once", func() error {
		var group sync.WaitGroup
		var lock sync.Mutex
		var first error
		seen := map[int64]bool{}
		for worker := 0; worker < 100; worker++ {
			group.Add(1)
			go func() {
				defer group.Done()
				var last int64
				for i := 0; i < 50; i++ {
					physical, logical, err := cli.GetTS(ctx)
					ts := physical<<18 + logical
					lock.Lock()
					if err != nil {
						first = err
					} else if seen[ts] || ts <= last {
						first = fmt.Errorf("%d came twice, or after %d", ts, last)
					}
					seen[ts] = true
					lock.Unlock()
					last = ts
				}
			}()
		}
		group.Wait()
		return first
	})
	check("the least timestamp", func() error {
		physical, _, err := leastTimestamp(ctx, cli)
		if err == nil && time.Since(time.UnixMilli(physical)) > time.Minute {
			err = fmt.Errorf("%d", physical)
		}
		return err
	})
	check("one region, one store", func() error {
		region, err := cli.GetRegion(ctx, []byte("a"))
		if err != nil || region == nil || region.Leader == nil {
			return fmt.Errorf("%v %v", region, err)
		}
		previous, err := cli.GetPrevRegion(ctx, []byte("a"))
		if err != nil || previous == nil {
			return fmt.Errorf("%v %v", previous, err)
		}
		byID, err := cli.GetRegionByID(ctx, region.Meta.Id)
		if err != nil || byID == nil {
			return fmt.Errorf("%v %v", byID, err)
		}
		all, err := cli.ScanRegions(ctx, nil, nil, 10)
		if err != nil || len(all) != 1 {
			return fmt.Errorf("%v %v", all, err)
		}
		stores, err := cli.GetAllStores(ctx)
		if err != nil || len(stores) != 1 || stores[0].Address != place {
			return fmt.Errorf("%v %v", stores, err)
		}
		return nil
	})
	check("safe points of services and of garbage collection", func() error {
		least, err := cli.UpdateServiceGCSafePoint(ctx, "drainer", 300, 100)
		if err != nil || least != 0 {
			return fmt.Errorf("%v %v", least, err)
		}
		if _, err = cli.UpdateServiceGCSafePoint(ctx, "drainer", 0, 100); err != nil {
			return err
		}
		_, err = cli.UpdateGCSafePoint(ctx, 1)
		return err
	})
	check("settings of the cluster are kept", func() error {
		items := []pd.GlobalConfigItem{{Name: "a", Value: "1", PayLoad: []byte("1")}}
		if err := cli.StoreGlobalConfig(ctx, "/global/config/interop/", items); err != nil {
			return err
		}
		found, _, err := cli.LoadGlobalConfig(ctx, nil, "/global/config/interop/")
		if err != nil || len(found) != 1 || string(found[0].PayLoad) != "1" {
			return fmt.Errorf("%v %v", found, err)
		}
		named, _, err := cli.LoadGlobalConfig(ctx, []string{"a", "b"}, "/global/config/interop/")
		if err != nil || len(named) != 2 {
			return fmt.Errorf("%v %v", named, err)
		}
		return nil
	})
	check("keyspaces are not here", func() error {
		_, err := cli.LoadKeyspace(ctx, "DEFAULT")
		return refused(err)
	})
	check("resource groups are not here", func() error {
		_, err := cli.ListResourceGroups(ctx)
		return refused(err)
	})
	check("what TiKV would do is not here", func() error {
		return refused(cli.ScatterRegion(ctx, 1))
	})
}

// A Drainer reads the history of DDL jobs from the end; a Pump asks what became of a transaction.
func askTikv(ctx context.Context, place string) {
	if directory := os.Getenv("TLS"); directory != "" {
		config.UpdateGlobal(func(conf *config.Config) {
			conf.Security = config.NewSecurity(directory+"/ca.pem", directory+"/tidb.pem", directory+"/tidb.key", nil)
		})
	}
	cli, err := txnkv.NewClient([]string{place})
	if err != nil {
		check("tikv", func() error { return err })
		return
	}
	defer cli.Close()
	check("the history is scanned backward from its end, and each job is read again", func() error {
		ts, err := cli.CurrentTimestamp("global")
		if err != nil {
			return err
		}
		snapshot := cli.GetSnapshot(ts)
		jobs, err := backward(snapshot, []byte("mE"))
		if err != nil {
			return err
		}
		count := 0
		for ; jobs.Valid(); count++ {
			value, err := snapshot.Get(ctx, jobs.Key())
			if err != nil {
				return err
			}
			if len(value) == 0 {
				return fmt.Errorf("%q is empty", jobs.Key())
			}
			if err := jobs.Next(); err != nil {
				return err
			}
		}
		if count == 0 {
			return fmt.Errorf("there are no jobs")
		}
		return nil
	})
	check("the store answers what a client asks it every few seconds", func() error {
		time.Sleep(3 * time.Second)
		_, err := cli.GetSnapshot(1<<60).Get(ctx, []byte("nothing"))
		if err == nil || !strings.Contains(err.Error(), "not exist") {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	check("what became of a transaction is not told, and the asker hears why", func() error {
		request := tikvrpc.NewRequest(tikvrpc.CmdMvccGetByKey, &kvrpcpb.MvccGetByKeyRequest{Key: []byte("k")})
		location, err := cli.GetRegionCache().LocateKey(tikv.NewBackofferWithVars(ctx, 500, nil), []byte("k"))
		if err != nil {
			return err
		}
		answer, err := cli.SendReq(tikv.NewBackofferWithVars(ctx, 500, nil), request, location.Region, 5*time.Second)
		if err == nil {
			if info, ok := answer.Resp.(*kvrpcpb.MvccGetByKeyResponse); ok && info.Error != "" {
				err = fmt.Errorf("%s", info.Error)
			}
		}
		return refused(err)
	})
	check("nobody is rolled back by asking", func() error {
		status, err := cli.GetLockResolver().GetTxnStatus(1, 1, []byte("k"))
		if err == nil {
			return fmt.Errorf("%v", status)
		}
		return refused(err)
	})
}
