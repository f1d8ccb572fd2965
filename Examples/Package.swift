// swift-tools-version:6.3
import PackageDescription

// Programs that use the library as others would, with packages that the library does not need. A package of its own, so
// that nobody who depends on the library fetches them.
//   CO_WERROR  set: warnings are errors.
//   CO_TESTS   set: of the test targets, only those that it names, with commas.
//   CO_WSLAY   set: with the WebSocket, which needs libwslay-dev; the Makefile sets it where that is installed.
let warningsAreErrors = Context.environment["CO_WERROR"] != nil

let coroutine: Target.Dependency = .product(name: "Coroutine", package: "coroutine")
let coroutineHTTP: Target.Dependency = .product(name: "CoroutineHTTP", package: "coroutine")
let coroutineNIO: Target.Dependency = .product(name: "CoroutineNIO", package: "coroutine")
let coroutinePostgres: Target.Dependency = .product(name: "CoroutinePostgres", package: "coroutine")
let coroutineWork: Target.Dependency = .product(name: "CoroutineWork", package: "coroutine")
let coroutineNet: Target.Dependency = .product(name: "CoroutineNet", package: "coroutine")
func nio(_ name: String) -> Target.Dependency { .product(name: name, package: "swift-nio") }
let hummingbird: Target.Dependency = .product(name: "Hummingbird", package: "hummingbird")
let httpTypes: Target.Dependency = .product(name: "HTTPTypes", package: "swift-http-types")
let logging: Target.Dependency = .product(name: "Logging", package: "swift-log")

let package = Package(
  name: "examples",
  products: [
    .library(name: "HummingbirdCoroutines", targets: ["HummingbirdCoroutines"]),
    .executable(name: "feed-site", targets: ["FeedSite"]),
    .executable(name: "order-service", targets: ["OrderService"]),
    .executable(name: "proxy", targets: ["Proxy"]),
    .executable(name: "name-server", targets: ["NameServer"]),
    .executable(name: "hummingbird-site", targets: ["HummingbirdSite"]),
  ],
  dependencies: [
    // The name is given because the folder may be called anything.
    .package(name: "coroutine", path: "..", traits: ["HTTP", "NIO", "Postgres"]),
    .package(url: "https://github.com/apple/swift-async-algorithms", from: "1.1.4"),
    .package(url: "https://github.com/apple/swift-http-types", from: "1.8.0"),
    .package(url: "https://github.com/apple/swift-log", from: "1.14.0"),
    .package(url: "https://github.com/apple/swift-nio", from: "2.101.0"),
    .package(url: "https://github.com/apple/swift-nio-extras", from: "1.35.0"),
    // Without its reader of configuration files, which would be compiled for nothing.
    .package(url: "https://github.com/hummingbird-project/hummingbird", from: "2.28.0", traits: ["FullFoundation"]),
  ],
  targets: [
    // Routes of Hummingbird whose handlers are synchronous code.
    .target(
      name: "HummingbirdCoroutines",
      dependencies: [coroutine, coroutineNIO, httpTypes, hummingbird, nio("NIOCore")]
    ),
    .executableTarget(
      name: "HummingbirdSite",
      dependencies: [
        "HummingbirdCoroutines", coroutine, coroutineNIO, hummingbird, logging, nio("NIOCore"), nio("NIOPosix"),
      ]
    ),
    .testTarget(
      name: "HummingbirdCoroutinesTests",
      dependencies: [
        "Clients", "HummingbirdCoroutines", "HummingbirdSite", coroutine, coroutineNet, hummingbird, logging,
        .product(name: "HummingbirdCore", package: "hummingbird"), nio("NIOConcurrencyHelpers"), nio("NIOCore"),
        nio("NIOPosix"),
        .product(name: "HummingbirdTesting", package: "hummingbird"),
        .product(name: "NIOHTTPTypes", package: "swift-nio-extras"),
      ]
    ),
    // Servers on the sockets of the library. Tests/CoroutineNetTests has their tests, by links to their files.
    .executableTarget(name: "Proxy", dependencies: [coroutine, coroutineNet]),
    .executableTarget(name: "NameServer", dependencies: [coroutine, coroutineNet]),
    // What the tests talk with: curl, and connections.
    .target(name: "Clients", dependencies: [coroutine, coroutineNet], path: "Tests/Clients"),
    // Parses with the files of CoroutineDemo, by links to them in its folder Shared.
    .executableTarget(
      name: "FeedSite",
      dependencies: [coroutine, coroutineHTTP, coroutineNet, httpTypes],
      swiftSettings: [.define("Demo")]
    ),
    .testTarget(
      name: "FeedSiteTests",
      dependencies: ["FeedSite", coroutine, coroutineHTTP, coroutineNet]
    ),
    // Operators of swift-async-algorithms on channels.
    .testTarget(
      name: "StreamOperatorTests",
      dependencies: [
        coroutine, .product(name: "CoroutineTesting", package: "coroutine"),
        .product(name: "AsyncAlgorithms", package: "swift-async-algorithms"),
      ]
    ),
    // Orders behind HTTP, whose mails survive the process.
    .executableTarget(
      name: "OrderService",
      dependencies: [coroutine, coroutineHTTP, coroutineNet, coroutinePostgres, coroutineWork, httpTypes]
    ),
    // Starts a database of its own with a file of CoroutineDemo, by a link to it.
    .testTarget(
      name: "OrderServiceTests",
      dependencies: [
        "Clients", "OrderService", coroutine, coroutineHTTP, coroutineNet, coroutinePostgres, coroutineWork, httpTypes,
      ],
      swiftSettings: [.define("Postgres")]
    ),
  ],
  swiftLanguageModes: [.v6]
)

if let path = Context.environment["CO_WSLAY"], !path.isEmpty {
  package.products.append(.executable(name: "web-socket", targets: ["WebSocket"]))
  package.targets += [
    .systemLibrary(name: "CWslay"),
    .executableTarget(name: "WebSocket", dependencies: ["CWslay", coroutine, coroutineHTTP, coroutineNet, httpTypes]),
    .testTarget(
      name: "WebSocketTests",
      dependencies: ["Clients", "WebSocket", coroutine, coroutineHTTP, coroutineNet, httpTypes]
    ),
  ]
}

for target in package.targets where target.type != .system {
  target.swiftSettings =
    (target.swiftSettings ?? []) + [
      .enableUpcomingFeature("ExistentialAny"),
      .enableUpcomingFeature("InternalImportsByDefault"),
      .enableUpcomingFeature("MemberImportVisibility"),
      .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
    ] + (warningsAreErrors ? [.treatAllWarnings(as: .error)] : [])
}

if let only = Context.environment["CO_TESTS"] {
  let names = only.split(separator: ",").map(String.init)
  package.targets.removeAll { $0.type == .test && !names.contains($0.name) }
}
