import Coroutine
import CoroutineHTTP
import CoroutineNet
import Foundation

/// Orders behind HTTP, with an outbox in PostgreSQL: `order-service DATABASE [PORT [GATEWAY]]`.
///
/// `DATABASE` is what libpq takes: `postgresql:///shop`, say. Mails are posted to the URL `GATEWAY`; without one they
/// are printed. Ctrl-C or SIGTERM ends it in two steps: requests and mails that have begun are finished, then it exits.
@main
struct OrderServiceProgram {
  static func main() {
    let arguments = Array(CommandLine.arguments.dropFirst())
    guard let database = arguments.first else { return usage("A database is missing.") }
    guard let port = UInt16(arguments.count > 1 ? arguments[1] : "8080") else {
      return usage("\(arguments[1]) is no port.")
    }
    let gateway = arguments.count > 2 ? Self.gateway(arguments[2]) : nil
    if arguments.count > 2, gateway == nil { return usage("\(arguments[2]) is no URL of http or https.") }
    co_main {
      let shop = try Shop(database)
      let service = Service(shop) { mail, key in
        guard let gateway else { return print("Mail \(key): \(mail.customer), your order \(mail.order) is placed.") }
        try gateway.deliver(mail, key)
      }
      let diagnostics = try CoroutineRuntime.serveDiagnostics(at: .loopback(port: 0))
      defer { diagnostics.stop() }
      try service.run(.loopback(port: port)) { bound in
        print("Orders: http://\(bound)/orders, the outbox: http://\(bound)/health")
        print("Diagnostics: http://\(diagnostics.address)/")
        fflush(nil)
      }
    }
  }

  private static func gateway(_ text: String) -> Gateway? {
    guard let url = URL(string: text), ["http", "https"].contains(url.scheme), url.host() != nil else { return nil }
    return Gateway(url)
  }

  private static func usage(_ fault: String) {
    FileHandle.standardError.write(Data("\(fault)\nusage: order-service DATABASE [PORT [GATEWAY]]\n".utf8))
    exit(64)
  }
}
