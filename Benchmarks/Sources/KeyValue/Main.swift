import Coroutine
import CoroutineNet
import Dispatch
import Glibc
import Harness

// A small key-value server that speaks Redis's protocol (RESP2), for `run-kv`: kv-server worker|pool|queue [OPTION…].
// It prints "port N", and serves until it is ended. The word says who owns the data:
//
//   worker   one worker of the pool; no lock, because nothing else runs coroutines
//   pool     all workers; the data is divided by the keys' hashes, and each part has a lock
//   queue    a serial queue, on which all connections run; no lock
//
//   --drain  connections wait for the next command in a way that a stop ends at once
//
// COROUTINE_WORKERS is the number of workers.

@main
struct KeyValueServer {
  static func main() throws {
    var arguments = Array(CommandLine.arguments.dropFirst())
    let drains = arguments.contains("--drain")
    arguments.removeAll { $0 == "--drain" }
    switch arguments {
    case ["worker"]:
      guard CoroutineRuntime.workerCount == 1 else {
        complain("error: 'worker' is for one worker: set COROUTINE_WORKERS=1")
        exit(2)
      }
      let owner = OneThread()
      try co_launch { try serve(owner, drains) }.blockingWait()
    case ["pool"]:
      let owner = Parts(64)
      try co_launch { try serve(owner, drains) }.blockingWait()
    case ["queue"]:
      let owner = OneThread()
      try co_launch(on: DispatchQueue(label: "data")) { try serve(owner, drains) }.blockingWait()
    default:
      complain("error: use kv-server worker|pool|queue [--drain]")
      exit(2)
    }
  }

  private static func serve(_ owner: some Owner, _ drains: Bool) throws {
    var options = Server.Options()
    // Clients reset their connections at the end.
    options.onError = { _, _ in }
    try Server.run(.loopback(port: 0), options: options, onListening: announce) { connection in
      try Session(connection: connection, owner: owner, drains: drains).serve()
    }
  }

  private static func announce(_ address: SocketAddress) {
    print("port \(address.port ?? 0)")
    fflush(nil)
  }
}
