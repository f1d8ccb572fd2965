// The servers of run-net in Go: go-net echo|http|net-http. GOMAXPROCS is the number of threads that run Go code.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
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

func main() {
	if len(os.Args) != 2 {
		fail("use go-net echo|http|net-http")
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
	default:
		fail("there is no server '" + os.Args[1] + "'")
	}
}
