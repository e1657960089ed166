// The same execs by client-go: of each pod named on its standard input, one after the other at an even rate. It prints
// how many ended well and its own CPU seconds and memory, as JSON.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the cluster")
	namespace := flag.String("namespace", "", "of the pods")
	rate := flag.Float64("rate", 1, "execs begun each second")
	script := flag.String("script", "", "a file: what each exec is sent")
	marker := flag.String("marker", "", "what the output of one that ended well holds")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(*script)
	if err != nil {
		log.Fatal(err)
	}
	run := func(pod string) error {
		request := clients.CoreV1().RESTClient().Post().Resource("pods").Namespace(*namespace).Name(pod).
			SubResource("exec").VersionedParams(&v1.PodExecOptions{
			Container: "notebook", Command: []string{"/bin/sh", "-s"}, Stdin: true, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
		executor, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
		if err != nil {
			return err
		}
		var out, said bytes.Buffer
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{
			Stdin: bytes.NewReader(text), Stdout: &out, Stderr: &said,
		})
		if err == nil && !bytes.Contains(out.Bytes(), []byte(*marker)) {
			return os.ErrInvalid
		}
		return err
	}
	var wait sync.WaitGroup
	var well, failed atomic.Int64
	begun, number := time.Now(), 0
	pods := bufio.NewScanner(os.Stdin)
	for pods.Scan() {
		pod := pods.Text()
		time.Sleep(time.Until(begun.Add(time.Duration(float64(number) / *rate * float64(time.Second)))))
		number++
		wait.Add(1)
		go func() {
			defer wait.Done()
			if run(pod) == nil {
				well.Add(1)
			} else {
				failed.Add(1)
			}
		}()
	}
	wait.Wait()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	_ = json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"well": float64(well.Load()), "failed": float64(failed.Load()), "seconds": time.Since(begun).Seconds(),
		"cpu_seconds": seconds(usage.Utime) + seconds(usage.Stime), "memory_mib": highest(),
	})
}

// The most memory it ever had: getrusage counts the parent's too, from before exec.
func highest() float64 {
	status, _ := os.ReadFile("/proc/self/status")
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kib, _ := strconv.ParseFloat(strings.Fields(after)[0], 64)
	return kib / 1024
}
