// The servers of run-net in Go: go-net echo|http|net-http|net-http-json. GOMAXPROCS is the number of threads that run Go
// code. And two clients:
//
//	go-net client PORT N               N requests by 64 goroutines; prints the processor time of one
//	go-net hold-tls PORT N PROCESS     N idle connections with TLS; prints what each costs the process
package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const body = "Hello, World!"

var response = []byte("HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Type: text/plain\r\n\r\n" + body)

// Calls serve with a buffer and what fills it, until the connection ends.
func each(connection net.Conn, serve func([]byte) error) {
	defer connection.Close()
	buffer := make([]byte, 4096)
	for {
		count, err := connection.Read(buffer)
		if count > 0 && serve(buffer[:count]) != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

func echo(connection net.Conn) {
	each(connection, func(bytes []byte) error {
		_, err := connection.Write(bytes)
		return err
	})
}

func answer(connection net.Conn) {
	matched := 0 // the bytes of CR LF CR LF that the last bytes are
	each(connection, func(bytes []byte) error {
		ends := 0
		for _, b := range bytes {
			expected := byte('\r')
			if matched&1 == 1 {
				expected = '\n'
			}
			if b == expected {
				matched++
				if matched == 4 {
					ends++
					matched = 0
				}
			} else if b == '\r' {
				matched = 1
			} else {
				matched = 0
			}
		}
		if ends == 1 {
			_, err := connection.Write(response)
			return err
		}
		responses := net.Buffers{}
		for ; ends > 0; ends-- {
			responses = append(responses, response)
		}
		_, err := responses.WriteTo(connection)
		return err
	})
}

func serve(listener net.Listener, handle func(net.Conn)) error {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go handle(connection)
	}
}

func fail(problem any) {
	fmt.Fprintln(os.Stderr, "error:", problem)
	os.Exit(2)
}

// The processor time of this process so far, in microseconds.
func processorTime() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return float64(usage.Utime.Sec+usage.Stime.Sec)*1e6 + float64(usage.Utime.Usec+usage.Stime.Usec)
}

func ask(port string, count int) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	run := func(count int) {
		var group sync.WaitGroup
		for i := 0; i < 64; i++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for i := 0; i < count/64; i++ {
					response, err := client.Get("http://127.0.0.1:" + port + "/")
					if err != nil {
						fail(err)
					}
					got, err := io.ReadAll(response.Body)
					if err != nil || len(got) != len(body) {
						fail("wrong bytes")
					}
					response.Body.Close()
				}
			}()
		}
		group.Wait()
	}
	run(count / 10)
	start := processorTime()
	run(count)
	fmt.Printf("us %.3f\n", (processorTime()-start)/float64(count/64*64))
}

// VmRSS and VmPTE of a process, in bytes.
func memory(process string) float64 {
	text, err := os.ReadFile("/proc/" + process + "/status")
	if err != nil {
		fail(err)
	}
	sum := 0.0
	for _, line := range strings.Split(string(text), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 1 && (fields[0] == "VmRSS:" || fields[0] == "VmPTE:") {
			value, _ := strconv.ParseFloat(fields[1], 64)
			sum += value * 1024
		}
	}
	return sum
}

func holdTLS(port string, count int, process string) {
	settings := &tls.Config{InsecureSkipVerify: true}
	buffer := make([]byte, 4096)
	open := func() *tls.Conn {
		connection, err := tls.Dial("tcp4", "127.0.0.1:"+port, settings)
		if err != nil {
			fail(err)
		}
		io.WriteString(connection, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if _, err := connection.Read(buffer); err != nil {
			fail(err)
		}
		return connection
	}
	held := []*tls.Conn{}
	for i := 0; i < 10; i++ {
		held = append(held, open())
	}
	before := memory(process)
	for i := 0; i < count; i++ {
		held = append(held, open())
	}
	time.Sleep(500 * time.Millisecond)
	fmt.Printf("bytes %.0f\n", (memory(process)-before)/float64(count))
	for _, connection := range held {
		connection.Close()
	}
}

func main() {
	if len(os.Args) > 3 {
		count, err := strconv.Atoi(os.Args[3])
		if err != nil {
			fail(err)
		}
		if os.Args[1] == "client" && len(os.Args) == 4 {
			ask(os.Args[2], count)
			return
		}
		if os.Args[1] == "hold-tls" && len(os.Args) == 5 {
			holdTLS(os.Args[2], count, os.Args[4])
			return
		}
	}
	if len(os.Args) != 2 {
		fail("use go-net echo|http|net-http|net-http-json, client PORT N or hold-tls PORT N PROCESS")
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	fmt.Printf("port %d\n", listener.Addr().(*net.TCPAddr).Port)
	switch os.Args[1] {
	case "echo":
		fail(serve(listener, echo))
	case "http":
		fail(serve(listener, answer))
	case "net-http":
		fail(http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, body)
		})))
	case "net-http-json":
		fail(http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, err := json.Marshal(struct {
				Message string `json:"message"`
				Agent   string `json:"agent"`
				Fields  int    `json:"fields"`
			}{body, r.Header.Get("User-Agent"), len(r.Header)})
			if err != nil {
				fail(err)
			}
			w.Header().Set("Content-Type", "application/json")
			w.Write(text)
		})))
	default:
		fail("there is no server '" + os.Args[1] + "'")
	}
}
