import Coroutine
import CoroutineNet
import Glibc
import Harness
import MinimalHTTP

// Our servers for `run-net`: net-server echo|http|copy [OPTION…]. It prints "port N", and serves until it is ended.
//
//   --deadline    each read has a deadline
//   --arrays      reads return arrays, so a connection has no buffer while it waits
//   --lines       lines are read by a BufferedReader, which has no buffer while it waits
//   --messages    a BufferedReader waits for each message of an echo, or for the server's end
//   --blocks      a BufferedReader reads blocks of 64 bytes
//   --small-stack the stack of each connection has 16 KiB
//   --listeners   each worker has a listener of its own (SO_REUSEPORT)
//   --machine     prints the processor, and what makes the numbers worth less, in place of serving
//
// COROUTINE_WORKERS is the number of workers.

@main
struct NetServer {
  static func main() throws {
    var arguments = Array(CommandLine.arguments.dropFirst())
    func has(_ option: String) -> Bool {
      let found = arguments.contains(option)
      arguments.removeAll { $0 == option }
      return found
    }
    if has("--machine") {
      print(([Machine.description] + Machine.warnings.map { "careful: \($0)" }).joined(separator: "\n"))
      return
    }
    let reading: Session.Reading =
      switch (has("--deadline"), has("--arrays")) {
      case (true, true): .asArraysWithDeadline
      case (true, false): .withDeadline
      case (false, true): .asArrays
      default: has("--lines") ? .asLines : has("--messages") ? .asMessages : has("--blocks") ? .inBlocks : .intoBuffer
      }
    var options = Server.Options()
    options.listener.reusePort = has("--listeners")
    // The clients reset their connections at the end.
    options.onError = { _, _ in }
    if has("--small-stack") { options.stack = .bytes(16 * 1_024) }
    guard [["echo"], ["http"], ["copy"]].contains(arguments) else {
      complain(
        "error: use net-server echo|http|copy [--deadline] [--arrays | --lines | --messages | --blocks] "
          + "[--small-stack] [--listeners]"
      )
      exit(2)
    }
    let answersHTTP = arguments == ["http"]
    let copies = arguments == ["copy"]
    try co_launch { [options] in
      try Server.run(.loopback(port: 0), options: options, onListening: announce) { connection in
        if copies { return try Tunnel.run(connection) }
        let session = Session(connection: connection, reading: reading)
        if answersHTTP { try session.answer() } else { try session.echo() }
      }
    }
    .blockingWait()
  }

  static func announce(_ address: SocketAddress) {
    print("port \(address.port ?? 0)")
    fflush(nil)
  }
}
