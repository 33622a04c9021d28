import { useEffect, useState } from "preact/hooks";

/** The current time, updated at this interval in milliseconds while it is in use. */
export function useNow(every: number, isWanted: boolean): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isWanted) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every, isWanted]);
  return isWanted ? Math.max(now, Date.now() - every) : now;
}
