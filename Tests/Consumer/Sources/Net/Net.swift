import Coroutine
import CoroutineNet

/// Echoes what each client of a server says; compiled, not run.
public func serve(_ address: SocketAddress) -> Job<Void> {
  co_launch {
    try Server.run(address) { connection in
      while true {
        let bytes = try connection.read(upTo: 4_096)
        if bytes.isEmpty { return }
        try connection.write(bytes)
      }
    }
  }
}
