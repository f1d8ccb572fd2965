internal import CLinux
import Coroutine

/// Makes the pairs of sockets of a world's connections, listeners and datagram sockets.
enum Wires {
  /// Returns a connected pair of sockets: the program's descriptor, and the world's wire.
  static func pair() throws(WatchedDescriptor.Failure) -> (Int32, Int32) {
    var ends: (Int32, Int32) = (-1, -1)
    let code = withUnsafeMutableBytes(of: &ends) { bytes in
      bytes.withMemoryRebound(to: Int32.self) { clinux_socket_pair($0.baseAddress.unsafelyUnwrapped) }
    }
    guard code == 0 else { throw .system(-code) }
    return ends
  }
}
