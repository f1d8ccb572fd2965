import Dispatch
import Foundation
import Glibc

/// The server for the README's example: three answers, and one path that is never answered.
final class LoginServer: Sendable {
  let port: UInt16
  /// Signalled when a request for a path under `/slow` has arrived, and when its client has closed the connection.
  let slowArrived = DispatchSemaphore(value: 0)
  let slowClosed = DispatchSemaphore(value: 0)
  private let listener: Int32

  init() {
    listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_addr.s_addr = inet_addr("127.0.0.1")
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    let descriptor = listener
    port = withUnsafeMutablePointer(to: &address) { address in
      address.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
        precondition(bind(descriptor, address, length) == 0 && listen(descriptor, 16) == 0, "no port on 127.0.0.1")
        getsockname(descriptor, address, &length)
      }
      return UInt16(bigEndian: address.pointee.sin_port)
    }
    Thread.detachNewThread { [self] in
      while true {
        let client = accept(listener, nil, nil)
        if client >= 0 { Thread.detachNewThread { self.serve(client) } }
      }
    }
  }

  func address(_ path: String) -> URL { URL(string: "http://127.0.0.1:\(port)\(path)")! }

  private func serve(_ client: Int32) {
    defer { close(client) }
    var buffer = [UInt8](repeating: 0, count: 4_096)
    var received = ""
    while !received.hasSuffix("\r\n\r\n") {
      let count = read(client, &buffer, buffer.count)
      guard count > 0 else { return }
      received += String(decoding: buffer[..<count], as: UTF8.self)
    }
    let path = received.split(separator: " ").dropFirst().first ?? ""
    if path.hasPrefix("/slow") {
      slowArrived.signal()
      while read(client, &buffer, buffer.count) > 0 {}
      slowClosed.signal()
      return
    }
    let body =
      switch path {
      case "/login": "token"
      case "/me/token": #"{"name": "Ada", "avatar": "\#(address("/avatar").absoluteString)"}"#
      default: "portrait"
      }
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: \(body.utf8.count)\r\nConnection: close\r\n\r\n\(body)"
    _ = write(client, answer, answer.utf8.count)
  }
}
