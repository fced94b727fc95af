// Load for any server that speaks the service of a Pump, by grpc-go and the messages of TiDB.
//
//	load write HOST:PORT CLUSTER [-in-flight 64] [-connections 1] [-size 200] [-rate R] {-pairs N | -seconds S}
//	load pull  HOST:PORT CLUSTER -after TS -count N
//	load lag   HOST:PORT CLUSTER -seconds S [-rate R]
//	load probe HOST:PORT CLUSTER
//	load bare  HOST:PORT DIRECTORY
//
// `bare` is no load but the least that such a server needs (bare.go).
// A transaction is a Prewrite and, once that is acknowledged, its Commit. What was found is one line
// of JSON. The exit code is 1 when a call failed, or when what came back is not what was written.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	binlog "github.com/pingcap/tipb/go-binlog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	patience = time.Minute
	warm     = time.Second
)

// The messages of TiDB know how to write themselves.
type message interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

type codec struct{}

func (codec) Marshal(v any) ([]byte, error)      { return v.(message).Marshal() }
func (codec) Unmarshal(data []byte, v any) error { return v.(message).Unmarshal(data) }
func (codec) Name() string                       { return "proto" }

// Timestamps of the wall clock, each larger than the one before; two processes never have the same.
type clock struct{ last, own int64 }

func (c *clock) next() int64 {
	now := time.Now().UnixMilli() << 18
	for {
		last := atomic.LoadInt64(&c.last)
		next := max(last+64, now|c.own)
		if atomic.CompareAndSwapInt64(&c.last, last, next) {
			return next
		}
	}
}

type server struct {
	place   string
	cluster uint64
	clock   clock
	rows    []byte
}

func (s *server) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+s.place,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}),
			grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
}

func (s *server) send(ctx context.Context, conn *grpc.ClientConn, payload []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var answer binlog.WriteBinlogResp
	asked := &binlog.WriteBinlogReq{ClusterID: s.cluster, Payload: payload}
	if err := conn.Invoke(ctx, "/binlog.Pump/WriteBinlog", asked, &answer); err != nil {
		return err
	}
	if answer.Errmsg != "" {
		return errors.New(answer.Errmsg)
	}
	return nil
}

func (s *server) write(ctx context.Context, conn *grpc.ClientConn, one *binlog.Binlog) error {
	payload, err := one.Marshal()
	if err != nil {
		return err
	}
	return s.send(ctx, conn, payload)
}

func (s *server) prewrite(start int64) *binlog.Binlog {
	return &binlog.Binlog{Tp: binlog.BinlogType_Prewrite, StartTs: start, PrewriteKey: []byte("t_row"), PrewriteValue: s.rows}
}

func committed(start, commit int64) *binlog.Binlog {
	return &binlog.Binlog{Tp: binlog.BinlogType_Commit, StartTs: start, CommitTs: commit, PrewriteKey: []byte("t_row")}
}

// Bytes of rows with which a Prewrite is that large.
func rowsOf(size int) ([]byte, error) {
	value := binlog.PrewriteValue{SchemaVersion: 1, Mutations: []binlog.TableMutation{{
		TableId: 71, InsertedRows: [][]byte{make([]byte, max(0, size-50))},
		Sequence: []binlog.MutationType{binlog.MutationType_Insert},
	}}}
	return value.Marshal()
}

type took []time.Duration

func (t took) at(share float64) float64 {
	if len(t) == 0 {
		return math.NaN()
	}
	return t[min(len(t)-1, int(float64(len(t))*share))].Seconds() * 1e3
}

func (t took) into(found map[string]any, name string) {
	sort.Slice(t, func(i, j int) bool { return t[i] < t[j] })
	found[name+"p50_ms"], found[name+"p99_ms"] = t.at(0.5), t.at(0.99)
}

type load struct {
	inFlight, connections int
	pairs                 int64
	duration              time.Duration
	rate                  float64
}

func (s *server) writeAll(load load) (map[string]any, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	conns := make([]*grpc.ClientConn, load.connections)
	for i := range conns {
		conn, err := s.dial()
		if err == nil {
			err = s.send(ctx, conn, nil) // it is open before the clock starts; an empty binlog is not stored
		}
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		conns[i] = conn
	}
	var group sync.WaitGroup
	var begun, written atomic.Int64
	slots := make([]took, load.inFlight)
	after, begin := s.clock.next(), time.Now()
	for slot := range slots {
		conn := conns[slot%len(conns)]
		send := func(one *binlog.Binlog) bool {
			at := time.Now()
			if err := s.write(ctx, conn, one); err != nil {
				cancel(err)
				return false
			}
			slots[slot] = append(slots[slot], time.Since(at))
			written.Add(1)
			return true
		}
		group.Add(1)
		go func() {
			defer group.Done()
			for ctx.Err() == nil {
				number := begun.Add(1)
				if number > load.pairs || time.Since(begin) >= load.duration {
					return
				}
				if load.rate > 0 {
					time.Sleep(time.Until(begin.Add(time.Duration(float64(number) / load.rate * float64(time.Second)))))
				}
				start := s.clock.next()
				if !send(s.prewrite(start)) || !send(committed(start, s.clock.next())) {
					return
				}
			}
		}()
	}
	group.Wait()
	seconds := time.Since(begin).Seconds()
	found := map[string]any{"binlogs": written.Load(), "per_s": float64(written.Load()) / seconds, "after": after}
	var all took
	for _, each := range slots {
		all = append(all, each...)
	}
	all.into(found, "")
	return found, context.Cause(ctx)
}

// What comes after a moment, without what says only how far the Pump is.
func (s *server) pull(ctx context.Context, after int64, take func(*binlog.Binlog) (bool, error)) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/binlog.Pump/PullBinlogs")
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&binlog.PullBinlogReq{ClusterID: s.cluster, StartFrom: binlog.Pos{Offset: after}}); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for goesOn := true; goesOn; {
		var answer binlog.PullBinlogResp
		var one binlog.Binlog
		if err := stream.RecvMsg(&answer); err != nil {
			return err
		}
		if err := one.Unmarshal(answer.Entity.Payload); err != nil {
			return err
		}
		if one.StartTs == one.CommitTs {
			continue
		}
		if goesOn, err = take(&one); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) pullAll(after, count int64) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	var came, last int64
	begin := time.Now()
	err := s.pull(ctx, after, func(one *binlog.Binlog) (bool, error) {
		if one.CommitTs <= last || len(one.PrewriteValue) == 0 {
			return false, fmt.Errorf("commit_ts %d with %d bytes of rows after commit_ts %d", one.CommitTs, len(one.PrewriteValue), last)
		}
		last, came = one.CommitTs, came+1
		return came < count, nil
	})
	return map[string]any{"per_s": float64(came) / time.Since(begin).Seconds(), "transactions": came}, err
}

// A transaction each 5 ms, and when it comes back through a stream that is open; beside a load that
// begins before the first that counts, and ends after the last. Both have their timestamps of one
// clock, as all writers of a cluster have: those of two would be commits below what was promised.
func (s *server) lag(duration time.Duration, beside load) (map[string]any, error) {
	if beside.rate == 0 {
		return s.lags(duration)
	}
	type result struct {
		found map[string]any
		err   error
	}
	ended := make(chan result, 1)
	go func() {
		written, err := s.writeAll(beside)
		ended <- result{written, err}
	}()
	found, err := s.lags(duration)
	written := <-ended
	if err = errors.Join(err, written.err); err == nil {
		found["beside_per_s"] = written.found["per_s"]
	}
	return found, err
}

func (s *server) lags(duration time.Duration) (map[string]any, error) {
	const every = 5 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), duration+patience)
	defer cancel()
	conn, err := s.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var lock sync.Mutex
	came, acked := map[int64]time.Time{}, map[int64]time.Time{}
	after, last, ended := s.clock.next(), int64(math.MaxInt64), make(chan error, 1)
	go func() {
		ended <- s.pull(ctx, after, func(one *binlog.Binlog) (bool, error) {
			lock.Lock()
			defer lock.Unlock()
			came[one.CommitTs] = time.Now()
			return one.CommitTs < last, nil
		})
	}()
	var calls took
	send := func(one *binlog.Binlog) error {
		at := time.Now()
		err := s.write(ctx, conn, one)
		calls = append(calls, time.Since(at))
		return err
	}
	begin, commit := time.Now(), int64(0)
	for i := time.Duration(0); i*every < warm+duration; i++ {
		time.Sleep(time.Until(begin.Add(i * every)))
		if i*every < warm {
			calls = nil
		}
		start := s.clock.next()
		if err := send(s.prewrite(start)); err != nil {
			return nil, err
		}
		commit = s.clock.next()
		if err := send(committed(start, commit)); err != nil {
			return nil, err
		}
		if i*every >= warm {
			acked[commit] = time.Now()
		}
	}
	lock.Lock()
	last = commit
	_, isThere := came[commit]
	lock.Unlock()
	if !isThere {
		if err := <-ended; err != nil {
			return nil, err
		}
	}
	lock.Lock()
	defer lock.Unlock()
	var lags took
	for commit, at := range acked {
		there, is := came[commit]
		if !is {
			return nil, fmt.Errorf("the transaction with commit_ts %d did not come back", commit)
		}
		lags = append(lags, max(0, there.Sub(at)))
	}
	found := map[string]any{"transactions": len(lags)}
	lags.into(found, "lag_")
	calls.into(found, "ack_")
	return found, nil
}

// Again every 20 ms, by a connection of its own each time, until a transaction is accepted.
func (s *server) probe() (map[string]any, error) {
	begin := time.Now()
	for {
		err := s.once()
		if err == nil {
			return map[string]any{"seconds": time.Since(begin).Seconds()}, nil
		}
		if time.Since(begin) > patience {
			return nil, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *server) once() error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	start := s.clock.next()
	if err := s.write(context.Background(), conn, s.prewrite(start)); err != nil {
		return err
	}
	return s.write(context.Background(), conn, committed(start, s.clock.next()))
}

func run() error {
	if len(os.Args) < 4 {
		return errors.New("load {write,pull,lag,probe} HOST:PORT CLUSTER ..., or load bare HOST:PORT DIRECTORY")
	}
	if os.Args[1] == "bare" {
		return serveBare(os.Args[2], os.Args[3])
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	inFlight := flags.Int("in-flight", 64, "calls that wait for their answer")
	connections := flags.Int("connections", 1, "connections that they share")
	size := flags.Int("size", 200, "bytes of a Prewrite")
	rate := flags.Float64("rate", 0, "transactions a second; as many as can be without it")
	pairs := flags.Int64("pairs", math.MaxInt64, "transactions")
	seconds := flags.Float64("seconds", 3600, "the longest that transactions are begun")
	after := flags.Int64("after", 0, "the commit_ts before the first that is pulled")
	count := flags.Int64("count", 1, "transactions that are pulled")
	if err := flags.Parse(os.Args[4:]); err != nil {
		return err
	}
	cluster, err := strconv.ParseUint(os.Args[3], 10, 64)
	if err != nil {
		return err
	}
	rows, err := rowsOf(*size)
	if err != nil {
		return err
	}
	duration := time.Duration(*seconds * float64(time.Second))
	s := &server{place: os.Args[2], cluster: cluster, clock: clock{own: int64(os.Getpid() % 64)}, rows: rows}
	var found map[string]any
	switch os.Args[1] {
	case "write":
		found, err = s.writeAll(load{*inFlight, *connections, *pairs, duration, *rate})
	case "pull":
		found, err = s.pullAll(*after, *count)
	case "lag":
		beside := load{*inFlight, *connections, *pairs, duration + 2*warm, *rate}
		found, err = s.lag(duration, beside)
	case "probe":
		found, err = s.probe()
	default:
		err = fmt.Errorf("%s: write, pull, lag or probe", os.Args[1])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
