package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"hash/crc32"
	"math"
	"net"
	"os"
	"path/filepath"

	binlog "github.com/pingcap/tipb/go-binlog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// The least that a durable WriteBinlog needs by grpc-go on this machine: each payload is appended
// with its length and its CRC, one fdatasync serves all that wait, and then they are answered. There
// is no index, no pairing, no order and nobody who pulls.
type bare struct{ waiting chan appended }

type appended struct {
	payload []byte
	synced  chan error
}

const waitingMax, bufferBytes = 4096, 4 << 20

func (b *bare) write(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var asked binlog.WriteBinlogReq
	if err := decode(&asked); err != nil {
		return nil, err
	}
	answer := &binlog.WriteBinlogResp{}
	if len(asked.Payload) == 0 {
		return answer, nil // as a Pump answers it: it is not stored
	}
	one := appended{asked.Payload, make(chan error, 1)}
	b.waiting <- one
	if err := <-one.synced; err != nil {
		answer.Errmsg = err.Error()
	}
	return answer, nil
}

// All that wait go into one group, and one sync is theirs.
func (b *bare) append(file *os.File) {
	out, table := bufio.NewWriterSize(file, bufferBytes), crc32.MakeTable(crc32.Castagnoli)
	var head [8]byte
	put := func(one appended) {
		binary.LittleEndian.PutUint32(head[:4], uint32(len(one.payload)))
		binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(one.payload, table))
		out.Write(head[:]) // what fails here fails in Flush, too
		out.Write(one.payload)
	}
	for first := range b.waiting {
		group := []appended{first}
		put(first)
		for n := len(b.waiting); n > 0; n-- {
			one := <-b.waiting
			put(one)
			group = append(group, one)
		}
		err := out.Flush()
		if err == nil {
			err = unix.Fdatasync(int(file.Fd()))
		}
		for _, one := range group {
			one.synced <- err
		}
	}
}

func serveBare(place, directory string) error {
	file, err := os.OpenFile(filepath.Join(directory, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", place)
	if err != nil {
		return err
	}
	b := &bare{make(chan appended, waitingMax)}
	go b.append(file)
	server := grpc.NewServer(grpc.ForceServerCodec(codec{}), grpc.MaxRecvMsgSize(math.MaxInt32))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "binlog.Pump",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "WriteBinlog", Handler: b.write}},
	}, b)
	return server.Serve(listener)
}
