import Coroutine
import CoroutineHTTP
import CoroutineNet
import Foundation
import Glibc
import HTTPTypes
import Harness

// What `run-net` measures of CoroutineHTTP, which needs packages and libraries of its own:
//
//   http-own plain                the minimal answer
//   http-own fields               every field of the request as the currency type, and an answer in JSON
//   http-own tls CHAIN KEY        the minimal answer over TLS
//   http-own client PORT N        N requests by 64 coroutines; prints the processor time of one

private let answer = "Hello, World!"

private struct Greeting: Encodable {
  let message: String
  let agent: String
  let fields: Int
}

@main
struct HTTPOwn {
  static func main() {
    let arguments = Array(CommandLine.arguments.dropFirst())
    switch (arguments.first, arguments.count) {
    case ("plain", 1): serve(.init(), answerPlain)
    case ("fields", 1): serve(.init(), answerFields)
    case ("tls", 3): serve(tls(arguments[1], arguments[2]), answerPlain)
    case ("client", 3):
      guard let port = UInt16(arguments[1]), let count = Int(arguments[2]) else { return misuse() }
      ask(port, count)
    default: misuse()
    }
  }

  private static func misuse() {
    complain("error: use http-own plain | fields | tls CHAIN KEY | client PORT N")
    exit(2)
  }

  private static func tls(_ chain: String, _ key: String) -> HTTPServer.Options {
    var options = HTTPServer.Options()
    do {
      options.tls = try TLS.Server(certificateChain: chain, privateKey: key)
    } catch {
      complain("error: \(error)")
      exit(2)
    }
    return options
  }

  private static func serve(
    _ options: HTTPServer.Options,
    _ handle: @escaping @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void
  ) {
    co_main {
      try HTTPServer.run(
        .loopback(port: 0),
        options: options,
        onListening: {
          print("port \($0.port ?? 0)")
          fflush(nil)
        },
        handle
      )
    }
  }

  @Sendable private static func answerPlain(_: borrowing ServerRequest, _ response: inout ServerResponse) throws {
    try response.send(answer, type: "text/plain")
  }

  @Sendable private static func answerFields(_ request: borrowing ServerRequest, _ response: inout ServerResponse)
    throws
  {
    let fields = request.head.headerFields
    let greeting = Greeting(message: answer, agent: fields[.userAgent] ?? "", fields: fields.count)
    try response.send(try JSONEncoder().encode(greeting), type: "application/json")
  }

  /// The processor time of this process so far, in seconds.
  private static var processorTime: Double {
    var usage = rusage()
    getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &usage)
    let seconds = Double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
    return seconds + Double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6
  }

  private static func ask(_ port: UInt16, _ count: Int) {
    co_main {
      let client = HTTPClient()
      let url = "http://127.0.0.1:\(port)/"
      @Sendable func run(_ count: Int) throws {
        try co_scope { scope in
          for _ in 0..<64 {
            scope.launch {
              for _ in 0..<count / 64 {
                guard try client.get(url).collect(upTo: 1_000).count == answer.utf8.count else { exit(1) }
              }
            }
          }
        }
      }
      try run(count / 10)
      let start = processorTime
      try run(count)
      print("us \((processorTime - start) / Double(count / 64 * 64) * 1e6)")
    }
  }
}
