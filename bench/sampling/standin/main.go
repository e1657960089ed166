// A kubelet that only execs: it speaks the real protocol, by the kubelet's own library, to the API server that proxies
// to it. Every command is a probe, as sh would run it: it reads a script up to its last line, takes as long as told, and
// prints what a file holds, with its own clock for CLOCK.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

const lastLine = "exit 0"

// The kubelet's own: of SPDY there is no fifth, and a server that agrees to it answers nobody.
var protocols = []string{"v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"}

type probe struct {
	since  time.Time
	takes  time.Duration
	prints []byte
}

func (p probe) ExecInContainer(
	_ context.Context, _, _, _ string, _ []string, in io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	if in != nil {
		lines := bufio.NewScanner(in)
		for lines.Scan() && lines.Text() != lastLine {
		}
	}
	time.Sleep(p.takes)
	clock := fmt.Sprintf("%.2f", 100+time.Since(p.since).Seconds())
	_, err := out.Write(bytes.Replace(p.prints, []byte("CLOCK"), []byte(clock), 1))
	return err
}

func main() {
	address := flag.String("address", "", "host and port to listen on")
	certificate := flag.String("cert", "", "its certificate")
	key := flag.String("key", "", "and its key")
	prints := flag.String("prints", "", "a file: what each probe prints")
	takes := flag.Duration("takes", 0, "how long each probe takes")
	flag.Parse()
	text, err := os.ReadFile(*prints)
	if err != nil {
		log.Fatal(err)
	}
	executor := probe{time.Now(), *takes, text}
	http.HandleFunc("/exec/", func(w http.ResponseWriter, r *http.Request) {
		options := &remotecommand.Options{
			Stdin:  r.FormValue("input") == "1",
			Stdout: r.FormValue("output") == "1",
			Stderr: r.FormValue("error") == "1",
		}
		path := strings.Split(r.URL.Path, "/") // /exec/NAMESPACE/POD/CONTAINER
		remotecommand.ServeExec(w, r, executor, path[3], "", path[4], r.Form["command"], options,
			time.Minute, 30*time.Second, protocols)
	})
	server := &http.Server{Addr: *address, ErrorLog: log.New(io.Discard, "", 0)}
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} // an upgrade is HTTP/1.1's
	log.Fatal(server.ListenAndServeTLS(*certificate, *key))
}
