// The client libraries of etcd and PD, as TiDB, Pump, Drainer and binlogctl are built with them,
// against a binlogd that stands in for both: one argument, its host:port. Each line says "ok" or
// "FAIL" and what was asked; the exit code is 1 when something failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	pd "github.com/tikv/pd/client"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
)

var failed bool

func check(name string, f func() error) {
	t := time.Now()
	err := f()
	if err != nil {
		failed = true
		fmt.Printf("FAIL %s: %v (%.2fs)\n", name, err, time.Since(t).Seconds())
	} else {
		fmt.Printf("ok   %s (%.2fs)\n", name, time.Since(t).Seconds())
	}
}

func main() {
	ep := os.Args[1]
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{ep}, DialTimeout: 5 * time.Second,
		AutoSyncInterval: time.Second, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		PermitWithoutStream: true,
		DialOptions:         []grpc.DialOption{grpc.WithBlock()}})
	if err != nil {
		fmt.Println("FAIL dial", err)
		os.Exit(1)
	}
	defer cli.Close()
	base := fmt.Sprintf("/go/%d/", time.Now().UnixNano())
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	check("put get", func() error {
		p, err := cli.Put(ctx, base+"a", "1")
		if err != nil {
			return err
		}
		g, err := cli.Get(ctx, base, clientv3.WithPrefix())
		if err != nil {
			return err
		}
		if g.Count != 1 || g.Kvs[0].ModRevision != p.Header.Revision || string(g.Kvs[0].Value) != "1" {
			return fmt.Errorf("%v", g)
		}
		return nil
	})
	check("txn", func() error {
		g, _ := cli.Get(ctx, base+"a")
		t, err := cli.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(base+"a"), "=", g.Kvs[0].ModRevision)).
			Then(clientv3.OpPut(base+"a", "2"), clientv3.OpGet(base+"a")).Else(clientv3.OpGet(base + "a")).Commit()
		if err != nil || !t.Succeeded || string(t.Responses[1].GetResponseRange().Kvs[0].Value) != "2" {
			return fmt.Errorf("%v %v", t, err)
		}
		t, err = cli.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(base+"a"), "=", g.Kvs[0].ModRevision)).
			Then(clientv3.OpPut(base+"a", "3")).Else(clientv3.OpGet(base + "a")).Commit()
		if err != nil || t.Succeeded || string(t.Responses[0].GetResponseRange().Kvs[0].Value) != "2" {
			return fmt.Errorf("%v %v", t, err)
		}
		return nil
	})
	check("errors typed", func() error {
		_, err := cli.Put(ctx, base+"x", "", clientv3.WithLease(12345))
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("lease: %v", err)
		}
		_, err = cli.Put(ctx, "", "")
		if !errors.Is(err, rpctypes.ErrEmptyKey) {
			return fmt.Errorf("empty: %v", err)
		}
		return nil
	})
	check("sync", func() error {
		if err := cli.Sync(ctx); err != nil {
			return err
		}
		if fmt.Sprint(cli.Endpoints()) != fmt.Sprintf("[http://%s]", ep) {
			return fmt.Errorf("%v", cli.Endpoints())
		}
		_, err := cli.Get(ctx, base)
		return err
	})
	check("member list", func() error {
		m, err := cli.MemberList(ctx)
		if err != nil || len(m.Members) != 1 {
			return fmt.Errorf("%v %v", m, err)
		}
		return nil
	})
	check("watch", func() error {
		wctx, wc := context.WithCancel(clientv3.WithRequireLeader(ctx))
		defer wc()
		g, _ := cli.Get(ctx, base+"w")
		w := cli.Watch(wctx, base+"w", clientv3.WithPrefix(), clientv3.WithRev(g.Header.Revision+1), clientv3.WithCreatedNotify())
		r := <-w
		if !r.Created {
			return fmt.Errorf("not created %v", r)
		}
		cli.Put(ctx, base+"w1", "a")
		cli.Put(ctx, base+"w1", "b")
		cli.Delete(ctx, base+"w1")
		n := 0
		for n < 3 {
			r, ok := <-w
			if !ok || r.Err() != nil {
				return fmt.Errorf("%v", r.Err())
			}
			for _, e := range r.Events {
				n++
				if n == 3 && (e.Type != mvccpb.DELETE || string(e.Kv.Key) != base+"w1") {
					return fmt.Errorf("%v", e)
				}
			}
		}
		if err := cli.RequestProgress(wctx); err != nil {
			return err
		}
		return nil
	})
	check("progress", func() error {
		wctx, wc := context.WithCancel(ctx)
		defer wc()
		w := cli.Watch(wctx, base+"p", clientv3.WithCreatedNotify())
		<-w
		if err := cli.RequestProgress(wctx); err != nil {
			return err
		}
		select {
		case r := <-w:
			if !r.IsProgressNotify() {
				return fmt.Errorf("%v", r)
			}
		case <-time.After(5 * time.Second):
			return fmt.Errorf("no progress")
		}
		return nil
	})
	check("many watches, big values", func() error {
		wctx, wc := context.WithCancel(ctx)
		defer wc()
		var wg sync.WaitGroup
		errs := make(chan error, 200)
		big := strings.Repeat("x", 300000)
		var ready sync.WaitGroup
		for i := 0; i < 100; i++ {
			wg.Add(1)
			ready.Add(1)
			go func(i int) {
				defer wg.Done()
				w := cli.Watch(wctx, fmt.Sprintf("%sm/", base), clientv3.WithPrefix(), clientv3.WithCreatedNotify())
				<-w
				ready.Done()
				n := 0
				for r := range w {
					for range r.Events {
						n++
					}
					if n == 5 {
						return
					}
				}
				errs <- fmt.Errorf("watch %d ended at %d", i, n)
			}(i)
		}
		ready.Wait()
		for i := 0; i < 5; i++ {
			if _, err := cli.Put(ctx, fmt.Sprintf("%sm/%d", base, i), big); err != nil {
				return err
			}
		}
		wg.Wait()
		select {
		case e := <-errs:
			return e
		default:
			return nil
		}
	})
	check("large range beyond 4MiB", func() error {
		big := strings.Repeat("x", 1000000)
		for i := 0; i < 6; i++ {
			if _, err := cli.Put(ctx, fmt.Sprintf("%sl/%d", base, i), big); err != nil {
				return err
			}
		}
		g, err := cli.Get(ctx, base+"l/", clientv3.WithPrefix())
		if err != nil || len(g.Kvs) != 6 {
			return err
		}
		_, err = cli.Delete(ctx, base+"l/", clientv3.WithPrefix())
		return err
	})
	check("too large request", func() error {
		_, err := cli.Put(ctx, base+"huge", strings.Repeat("x", 1600000))
		if !errors.Is(err, rpctypes.ErrRequestTooLarge) {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	check("lease", func() error {
		l, err := cli.Grant(ctx, 2)
		if err != nil {
			return err
		}
		if _, err := cli.Put(ctx, base+"lease", "x", clientv3.WithLease(l.ID)); err != nil {
			return err
		}
		kctx, kc := context.WithCancel(ctx)
		ka, err := cli.KeepAlive(kctx, l.ID)
		if err != nil {
			return err
		}
		for i := 0; i < 4; i++ {
			r, ok := <-ka
			if !ok || r.TTL != 2 {
				return fmt.Errorf("%v %v", r, ok)
			}
		}
		kc()
		w := cli.Watch(ctx, base+"lease")
		r := <-w
		if r.Err() != nil || r.Events[0].Type != mvccpb.DELETE {
			return fmt.Errorf("%v", r)
		}
		if _, err = cli.KeepAliveOnce(ctx, l.ID); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("keepalive once: %v", err)
		}
		l, _ = cli.Grant(ctx, 60)
		if _, err = cli.Revoke(ctx, l.ID); err != nil {
			return fmt.Errorf("first revoke %v", err)
		}
		if _, err = cli.Revoke(ctx, l.ID); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("second revoke: %v", err)
		}
		return nil
	})
	check("session election mutex", func() error {
		s, err := concurrency.NewSession(cli, concurrency.WithTTL(5))
		if err != nil {
			return err
		}
		s2, err := concurrency.NewSession(cli, concurrency.WithTTL(5))
		if err != nil {
			return err
		}
		e, e2 := concurrency.NewElection(s, base+"owner"), concurrency.NewElection(s2, base+"owner")
		if err := e.Campaign(ctx, "one"); err != nil {
			return err
		}
		done := make(chan error)
		go func() { done <- e2.Campaign(ctx, "two") }()
		g, err := e2.Leader(ctx)
		if err != nil || string(g.Kvs[0].Value) != "one" {
			return fmt.Errorf("%v %v", g, err)
		}
		s.Close()
		if err := <-done; err != nil {
			return err
		}
		m := concurrency.NewMutex(s2, base+"mutex")
		if err := m.Lock(ctx); err != nil {
			return err
		}
		if err := m.Unlock(ctx); err != nil {
			return err
		}
		return s2.Close()
	})
	check("gzip", func() error {
		c3, err := clientv3.New(clientv3.Config{Endpoints: []string{ep}, DialOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name))}})
		if err != nil {
			return err
		}
		defer c3.Close()
		if _, err := c3.Put(ctx, base+"z", strings.Repeat("z", 100000)); err != nil {
			return err
		}
		g, err := c3.Get(ctx, base+"z")
		if err != nil || len(g.Kvs[0].Value) != 100000 {
			return fmt.Errorf("%v", err)
		}
		w := c3.Watch(ctx, base+"z", clientv3.WithRev(g.Kvs[0].ModRevision))
		r := <-w
		if r.Err() != nil || len(r.Events) != 1 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	check("many parallel, cancelled", func() error {
		var wg sync.WaitGroup
		for i := 0; i < 300; i++ {
			wg.Add(1)
			go func(i int) {
				defer wg.Done()
				c, cc := context.WithTimeout(ctx, time.Duration(i)*100*time.Microsecond)
				defer cc()
				cli.Put(c, fmt.Sprintf("%smp/%d", base, i), "v")
			}(i)
		}
		wg.Wait()
		_, err := cli.Get(ctx, base+"mp/", clientv3.WithPrefix())
		return err
	})
	talkToPD(ctx, ep)
	if failed {
		os.Exit(1)
	}
}

// What TiDB, a Pump, a Drainer and binlogctl ask a PD that stands alone.
func talkToPD(ctx context.Context, ep string) {
	cli, err := pd.NewClientWithContext(ctx, []string{"http://" + ep}, pd.SecurityOption{})
	if err != nil {
		check("pd", func() error { return err })
		return
	}
	defer cli.Close()
	check("members", func() error {
		m, err := cli.GetAllMembers(ctx)
		if err == nil && len(m) != 1 {
			err = fmt.Errorf("%v", m)
		}
		return err
	})
	check("tso serial", func() error {
		var last int64
		for i := 0; i < 200; i++ {
			p, l, err := cli.GetTS(ctx)
			if err != nil {
				return err
			}
			ts := p<<18 | l
			if ts <= last {
				return fmt.Errorf("back %d %d", ts, last)
			}
			last = ts
		}
		return nil
	})
	check("tso parallel", func() error {
		var wg sync.WaitGroup
		var mu sync.Mutex
		seen := map[int64]bool{}
		var first error
		for g := 0; g < 200; g++ {
			wg.Add(1)
			go func() {
				defer wg.Done()
				var last int64
				for i := 0; i < 100; i++ {
					p, l, err := cli.GetTS(ctx)
					ts := p<<18 | l
					mu.Lock()
					if err != nil {
						first = err
					} else if seen[ts] || ts <= last {
						first = fmt.Errorf("twice/back %d", ts)
					}
					seen[ts] = true
					mu.Unlock()
					last = ts
				}
			}()
		}
		wg.Wait()
		return first
	})
	check("safe points", func() error {
		least, err := cli.UpdateServiceGCSafePoint(ctx, "drainer", 300, 100)
		if err != nil || least != 0 {
			return fmt.Errorf("%v %v", least, err)
		}
		_, err = cli.UpdateServiceGCSafePoint(ctx, "drainer", 0, 100)
		return err
	})
	check("one region, one store", func() error {
		region, err := cli.GetRegion(ctx, []byte("a"))
		if err != nil || region == nil || region.Leader == nil {
			return fmt.Errorf("%v %v", region, err)
		}
		store, err := cli.GetStore(ctx, region.Leader.StoreId)
		if err != nil || store.Address != ep {
			return fmt.Errorf("%v %v", store, err)
		}
		return nil
	})
}
