#if HTTP
import Coroutine

/// A client and a server of Go's net/http, compiled once for a run of the tests.
enum GoPeer {
  private static let built = Once<String>()

  /// The path of the program: `client URL` or `server FILE`, which gets the port.
  static func path() throws -> String {
    try built.run {
      let folder = try Certificates.shared().folder
      try Peer.write(Array(source.utf8), to: "\(folder)/peer.go")
      let end = try Peer.run("go", "build", "-o", "\(folder)/peer", "\(folder)/peer.go")
      if end.status != 0 { throw Peer.Failure(text: "the peer in Go does not build") }
      return "\(folder)/peer"
    }
  }

  private static let source = """
    package main

    import (
    \t"bytes"
    \t"fmt"
    \t"io"
    \t"net"
    \t"net/http"
    \t"os"
    \t"strings"
    \t"sync"
    \t"time"
    )

    func must(err error) {
    \tif err != nil {
    \t\tfmt.Println("error:", err)
    \t\tos.Exit(1)
    \t}
    }

    // Posts bodies of every kind, and compares what comes back.
    func client(url string) {
    \tvar group sync.WaitGroup
    \ttransport := &http.Transport{MaxIdleConnsPerHost: 8, ExpectContinueTimeout: time.Second}
    \tclient := &http.Client{Transport: transport, Timeout: time.Minute}
    \tfor worker := 0; worker < 8; worker++ {
    \t\tgroup.Add(1)
    \t\tgo func(worker int) {
    \t\t\tdefer group.Done()
    \t\t\tfor i := 0; i < 100; i++ {
    \t\t\t\tbody := bytes.Repeat([]byte(fmt.Sprintf("%d-%d,", worker, i)), 1+i*i%3000)
    \t\t\t\tvar reader io.Reader = bytes.NewReader(body)
    \t\t\t\tif i%3 == 1 {
    \t\t\t\t\treader = io.MultiReader(reader) // of unknown length: chunked
    \t\t\t\t}
    \t\t\t\tmode := []string{"send", "parts", "trailers"}[i%3]
    \t\t\t\trequest, err := http.NewRequest("POST", url+"/"+mode, reader)
    \t\t\t\tmust(err)
    \t\t\t\tif i%5 == 0 {
    \t\t\t\t\trequest.Header.Set("Expect", "100-continue")
    \t\t\t\t}
    \t\t\t\tresponse, err := client.Do(request)
    \t\t\t\tmust(err)
    \t\t\t\tgot, err := io.ReadAll(response.Body)
    \t\t\t\tmust(err)
    \t\t\t\tif response.StatusCode != 200 || !bytes.Equal(got, body) {
    \t\t\t\t\tmust(fmt.Errorf("%s: %d, %d bytes of %d", mode, response.StatusCode, len(got), len(body)))
    \t\t\t\t}
    \t\t\t\tif mode == "trailers" && response.Trailer.Get("X-Count") != fmt.Sprint(len(body)) {
    \t\t\t\t\tmust(fmt.Errorf("trailers: %v", response.Trailer))
    \t\t\t\t}
    \t\t\t\tresponse.Body.Close()
    \t\t\t}
    \t\t}(worker)
    \t}
    \tgroup.Wait()
    \thead, err := client.Head(url + "/send")
    \tmust(err)
    \tfmt.Println("800 answers", head.StatusCode)
    }

    func server(file string) {
    \tlistener, err := net.Listen("tcp4", "127.0.0.1:0")
    \tmust(err)
    \tmust(os.WriteFile(file+".new", []byte(fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)), 0600))
    \tmust(os.Rename(file+".new", file))
    \thttp.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
    \t\tbody, err := io.ReadAll(r.Body)
    \t\tif err == nil {
    \t\t\tw.Write(body)
    \t\t}
    \t})
    \thttp.HandleFunc("/parts", func(w http.ResponseWriter, r *http.Request) {
    \t\tfor i := 0; i < 100; i++ {
    \t\t\tio.WriteString(w, strings.Repeat("x", i))
    \t\t\tw.(http.Flusher).Flush()
    \t\t}
    \t})
    \thttp.HandleFunc("/close", func(w http.ResponseWriter, r *http.Request) {
    \t\tw.Header().Set("Connection", "close")
    \t\tio.WriteString(w, r.RemoteAddr)
    \t})
    \thttp.HandleFunc("/broken", func(w http.ResponseWriter, r *http.Request) {
    \t\tw.Header().Set("Content-Length", "10")
    \t\tio.WriteString(w, "half")
    \t\tw.(http.Flusher).Flush()
    \t\tpanic(http.ErrAbortHandler)
    \t})
    \thttp.Handle("/moved", http.RedirectHandler("/parts", 302))
    \tmust(http.Serve(listener, nil))
    }

    func main() {
    \tif os.Args[1] == "client" {
    \t\tclient(os.Args[2])
    \t} else {
    \t\tserver(os.Args[2])
    \t}
    }
    """
}
#endif
