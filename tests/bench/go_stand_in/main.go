// The Go peer of the rig: what a P/D proxy from Go's standard library costs. httputil.ReverseProxy to the decode engine;
// with x-prefiller-host-port first a prefill leg, the bodies edited as trees. Faithful in its legs and their edits, not a
// product: no allowlist, no validation of the handoff, no logs.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strconv"
	"time"
)

const prefillHeader = "X-Prefiller-Host-Port"

type standIn struct {
	decode    *httputil.ReverseProxy
	transport *http.Transport
}

type tree = map[string]interface{}

func parse(reader io.Reader) (tree, error) {
	decoder := json.NewDecoder(reader)
	decoder.UseNumber()
	var object tree
	err := decoder.Decode(&object)
	return object, err
}

// askPrefill sends a copy of the request that ends after one token, and returns the handoff.
func (s *standIn) askPrefill(request *http.Request, body tree, endpoint string) (interface{}, error) {
	prefill := make(tree, len(body)+4)
	for name, value := range body {
		prefill[name] = value
	}
	delete(prefill, "stream_options")
	prefill["stream"] = false
	prefill["max_tokens"] = 1
	if _, given := prefill["max_completion_tokens"]; given {
		prefill["max_completion_tokens"] = 1
	}
	prefill["kv_transfer_params"] = tree{"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil,
		"remote_block_ids": nil, "remote_host": nil, "remote_port": nil}
	text, err := json.Marshal(prefill)
	if err != nil {
		return nil, err
	}
	leg, err := http.NewRequestWithContext(request.Context(), http.MethodPost, "http://"+endpoint+request.URL.Path,
		bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	leg.Header = request.Header.Clone()
	leg.Header.Del(prefillHeader)
	reply, err := s.transport.RoundTrip(leg)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	answer, err := parse(reply.Body)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, reply.Body) // to its end, so that the connection is kept
	if reply.StatusCode != http.StatusOK || answer["kv_transfer_params"] == nil {
		return nil, fmt.Errorf("prefill answered %d without a handoff", reply.StatusCode)
	}
	return answer["kv_transfer_params"], err
}

func (s *standIn) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	endpoint := request.Header.Get(prefillHeader)
	if endpoint == "" || request.Method != http.MethodPost {
		s.decode.ServeHTTP(writer, request)
		return
	}
	body, err := parse(request.Body)
	if err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	handoff, err := s.askPrefill(request, body, endpoint)
	if err != nil {
		http.Error(writer, err.Error(), http.StatusBadGateway)
		return
	}
	body["kv_transfer_params"] = handoff
	text, err := json.Marshal(body)
	if err != nil {
		http.Error(writer, err.Error(), http.StatusInternalServerError)
		return
	}
	request.Header.Del(prefillHeader)
	request.Header.Set("Content-Length", strconv.Itoa(len(text)))
	request.ContentLength = int64(len(text))
	request.Body = io.NopCloser(bytes.NewReader(text))
	s.decode.ServeHTTP(writer, request)
}

func main() {
	port := flag.Int("port", 0, "where to listen; 0: any")
	upstream := flag.Int("upstream-port", 0, "of the decode engine")
	flag.Parse()
	runtime.GOMAXPROCS(1)

	target := &url.URL{Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(*upstream)}
	transport := &http.Transport{
		MaxIdleConns:        4096,
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     10 * time.Minute,
		DisableCompression:  true,
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	proxy.FlushInterval = -1 // at once, as a stream of tokens wants it

	listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(*port))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening port=%d\n", listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, &standIn{decode: proxy, transport: transport}))
}
