import Coroutine
import CoroutineHTTP
import CoroutineNet
import Glibc

/// A web service that reads feeds and shows them live: `feed-site [PORT [CERTIFICATES KEY]]`.
///
/// With two files in the form of PEM it serves over TLS. Ctrl-C or SIGTERM ends it in two steps: idle connections are
/// closed, streams of events end, requests finish.
@main
struct FeedSiteProgram {
  static func main() {
    let arguments = CommandLine.arguments.dropFirst()
    let port = arguments.first.flatMap { UInt16($0) } ?? 8080
    let files = Array(arguments.dropFirst())
    co_main {
      let site = Site(certificate: files.count == 2 ? .init(chain: files[0], key: files[1]) : nil)
      let diagnostics = try CoroutineRuntime.serveDiagnostics(at: .loopback(port: 0))
      defer { diagnostics.stop() }
      try site.run(.loopback(port: port)) { bound in
        print("The feeds are at \(site.url(bound))/")
        print("Diagnostics are at http://\(diagnostics.address)/")
        fflush(nil)
      }
    }
  }
}
