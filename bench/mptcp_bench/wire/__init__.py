"""What a proxy's two sides look like on the wire: captures, segments, connections, a request's way

``packets`` reads capture files, ``streams`` makes connections of segments, ``exchanges`` matches the proxy's two sides,
``capture`` runs tcpdump, ``workload`` sends the requests.
"""
